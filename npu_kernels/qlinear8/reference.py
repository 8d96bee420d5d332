"""QLinear in 8 bits: as qlinear, with codes of 8 bits around 128; a chunk is 9,216 bytes."""

from typing import Any

import numpy as np

from npu_kernels.bf16 import from_bits, to_bits
from npu_kernels.qlinear.reference import (
    BLOCKS,
    COLUMNS,
    CORES,
    ROWS,
    activations,
    by_group,
    dense,
    interleaved,
    padded,
)

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_BYTES = 9216
CENTRE = 128


def pack(codes: Array, scales: Array, minimum: Array | None) -> Array:
    """codes uint8 [N, K], scales and minimum float [N, K / 32]: chunks
    uint8 [N / 128, K / 256, 4, 9216], both rounded up. Scales and minimums are rounded to bfloat16.
    """
    codes, scales, minimum = padded(codes, scales, minimum, CENTRE)
    groups, chunks = codes.shape[0] // ROWS, codes.shape[1] // COLUMNS
    # [group, eight, row, chunk, k / 8, k] to [group, chunk, k / 8, eight, k, row]
    parts = codes.reshape(groups, 4, 8, chunks, COLUMNS // 8, 8).transpose(0, 3, 4, 1, 5, 2)
    heads = [
        to_bits(each).reshape(groups, ROWS, chunks, BLOCKS).transpose(0, 2, 3, 1)
        for each in (scales, minimum)
    ]
    flat = [np.ascontiguousarray(each).reshape(groups, chunks, -1).view(np.uint8) for each in heads]
    codes = (parts ^ 128).reshape(groups, chunks, -1)
    return interleaved(np.concatenate([*flat, codes], axis=2))


def unpack(chunks: Array, rows: int, columns: int) -> tuple[Array, Array, Array]:
    """The inverse of pack: codes [rows, columns], scales and minimum float32 [rows, blocks]."""
    chunks = by_group(chunks)
    groups, count = chunks.shape[:2]
    parts = (chunks[..., 1024:] ^ 128).reshape(groups, count, COLUMNS // 8, 4, 8, 8)
    codes = parts.transpose(0, 3, 5, 1, 2, 4).reshape(groups * ROWS, count * COLUMNS)
    scales, minimum = (
        from_bits(np.ascontiguousarray(chunks[..., start : start + 512]).view(np.uint16))
        .reshape(groups, count, BLOCKS, ROWS)
        .transpose(0, 3, 1, 2)
        .reshape(groups * ROWS, count * BLOCKS)[:rows, : -(-columns // 32)]
        for start in (0, 512)
    )
    return codes[:rows, :columns], scales, minimum


def qlinear8(chunks: Array, table: Array) -> Array:
    """y float64 [128 * fours]: chunks [fours, K / 256, 4, 9216] by a table [K / 256, 576]."""
    shape = chunks.shape[0] * CORES * ROWS, chunks.shape[1] * COLUMNS
    return dense(*unpack(chunks, *shape), CENTRE) @ activations(table)
