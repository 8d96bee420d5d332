"""QLinear in 8 bits: as qlinear, with codes of 8 bits around 128; a chunk is 9,216 bytes. Those of
blocks of 16 weights have as many scales again, in place of minimums.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from npu_kernels.bf16 import from_bits, to_bits
from npu_kernels.qlinear.reference import (
    BLOCKS,
    COLUMNS,
    ROWS,
    activations,
    by_group,
    dense,
    interleaved,
    padded,
    shape_of,
)

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_BYTES = 9216  # of both
CENTRE = 128


def pack(codes: Array, scales: Array, minimum: Array | None) -> Array:
    """codes uint8 [N, K], scales and minimum float [N, K / 32]: chunks
    uint8 [N / 128, K / 256, 4, 9216], both rounded up. Scales and minimums are rounded to bfloat16.
    """
    codes, scales, minimum = padded(codes, scales, minimum, CENTRE)
    return _chunks(codes, [scales, minimum])


def pack_by16(codes: Array, scales: Array, minimum: Array | None) -> Array:
    """The same, of scales [N, K / 16]; there is no room for minimums."""
    assert minimum is None
    codes, scales, _ = padded(codes, scales, None, CENTRE)
    return _chunks(codes, [scales])


def _chunks(codes: Array, heads: Sequence[Array]) -> Array:
    groups, chunks = codes.shape[0] // ROWS, codes.shape[1] // COLUMNS
    # [group, eight, row, chunk, k / 8, k] to [group, chunk, k / 8, eight, k, row]
    parts = codes.reshape(groups, 4, 8, chunks, COLUMNS // 8, 8).transpose(0, 3, 4, 1, 5, 2)
    # [group, row, chunk, block] to [group, chunk, block, row]
    bits = [to_bits(e).reshape(groups, ROWS, chunks, -1).transpose(0, 2, 3, 1) for e in heads]
    flat = [np.ascontiguousarray(each).reshape(groups, chunks, -1).view(np.uint8) for each in bits]
    codes = (parts ^ 128).reshape(groups, chunks, -1)
    return interleaved(np.concatenate([*flat, codes], axis=2))


def unpack(chunks: Array, rows: int, columns: int) -> tuple[Array, Array, Array]:
    """The inverse of pack: codes [rows, columns], scales and minimum float32 [rows, blocks]."""
    scales, minimum = (
        _head(chunks, start, BLOCKS)[:rows, : -(-columns // 32)] for start in (0, 512)
    )
    return _codes(chunks)[:rows, :columns], scales, minimum


def unpack_by16(chunks: Array, rows: int, columns: int) -> tuple[Array, Array, Array]:
    """The inverse of pack_by16; the minimums are zeros."""
    scales = _head(chunks, 0, 2 * BLOCKS)[:rows, : -(-columns // 16)]
    return _codes(chunks)[:rows, :columns], scales, np.zeros_like(scales)


def _codes(chunks: Array) -> Array:
    chunks = by_group(chunks)
    groups, count = chunks.shape[:2]
    parts = (chunks[..., 1024:] ^ 128).reshape(groups, count, COLUMNS // 8, 4, 8, 8)
    return parts.transpose(0, 3, 5, 1, 2, 4).reshape(groups * ROWS, count * COLUMNS)


def _head(chunks: Array, start: int, blocks: int) -> Array:
    """Of each chunk's so many blocks a float, from a byte on: [rows, all blocks]."""
    chunks = by_group(chunks)
    groups, count = chunks.shape[:2]
    bits = np.ascontiguousarray(chunks[..., start : start + 64 * blocks]).view(np.uint16)
    head = from_bits(bits).reshape(groups, count, blocks, ROWS).transpose(0, 3, 1, 2)
    return head.reshape(groups * ROWS, count * blocks)


def qlinear8(chunks: Array, table: Array) -> Array:
    """y float64 [128 * fours]: chunks [fours, K / 256, 4, 9216] by a table [K / 256, 576]."""
    return dense(*unpack(chunks, *shape_of(chunks)), CENTRE) @ activations(table)


def qlinear8_by16(chunks: Array, table: Array) -> Array:
    """The same, of chunks that pack_by16 makes."""
    return dense(*unpack_by16(chunks, *shape_of(chunks)), CENTRE) @ activations(table)
