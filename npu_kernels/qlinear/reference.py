"""QLinear in 4 bits: the chunks of weights, the table of activations, and their product.

A block of 32 weights of a row is scale * (code - 8) + minimum, scale and minimum bfloat16. A chunk
is 32 rows by 256 columns in 5,120 bytes. Chunks lie as four cores of a column take them: one for
each, then 256 columns on; then 128 rows on. Rows and columns beyond the matrix are zeros.
"""

from typing import Any

import numpy as np

from npu_kernels.bf16 import from_bits, to_bits

Array = np.ndarray[Any, np.dtype[Any]]

ROWS, COLUMNS, BLOCK = 32, 256, 32
CORES = 4
BLOCKS = COLUMNS // BLOCK
CHUNK_BYTES = 5120
TABLE_BYTES = 576  # for 256 activations
CENTRE = 8


def pack(codes: Array, scales: Array, minimum: Array | None) -> Array:
    """codes uint8 [N, K] below 16, scales and minimum float [N, K / 32]: chunks
    uint8 [N / 128, K / 256, 4, 5120], both rounded up. Scales and minimums are rounded to bfloat16.
    """
    codes, scales, minimum = padded(codes, scales, minimum, CENTRE)
    groups, chunks = codes.shape[0] // ROWS, codes.shape[1] // COLUMNS
    # [group, pair, odd, chunk, block, k / 8, k] to [group, chunk, k / 8, half, k, pair], two a byte
    parts = codes.reshape(groups, 2, 8, 2, chunks, COLUMNS // 8, 8).transpose(0, 4, 5, 1, 6, 2, 3)
    nibbles = (parts[..., 0] | parts[..., 1] << 4).reshape(groups, chunks, -1)
    heads = [
        # [group, pair, odd, chunk, block] to [group, chunk, block, odd, pair]
        to_bits(each).reshape(groups, 16, 2, chunks, BLOCKS).transpose(0, 3, 4, 2, 1)
        for each in (scales, minimum)
    ]
    flat = [np.ascontiguousarray(each).reshape(groups, chunks, -1).view(np.uint8) for each in heads]
    return interleaved(np.concatenate([*flat, nibbles], axis=2))


def interleaved(chunks: Array) -> Array:
    """Chunks [N / 32, K / 256, bytes] in the cores' order."""
    _, count, size = chunks.shape
    return np.ascontiguousarray(chunks.reshape(-1, CORES, count, size).swapaxes(1, 2))


def by_group(chunks: Array) -> Array:
    """The inverse."""
    fours, count, _, size = chunks.shape
    return chunks.swapaxes(1, 2).reshape(fours * CORES, count, size)


def unpack(chunks: Array, rows: int, columns: int) -> tuple[Array, Array, Array]:
    """The inverse of pack: codes [rows, columns], scales and minimum float32 [rows, blocks]."""
    chunks = by_group(chunks)
    groups, count = chunks.shape[:2]
    nibbles = chunks[..., 1024:].reshape(groups, count, COLUMNS // 8, 2, 8, 8)
    parts = np.stack([nibbles & 15, nibbles >> 4], axis=-1)
    codes = parts.transpose(0, 3, 5, 6, 1, 2, 4).reshape(groups * ROWS, count * COLUMNS)
    scales, minimum = (
        from_bits(np.ascontiguousarray(chunks[..., start : start + 512]).view(np.uint16))
        .reshape(groups, count, BLOCKS, 2, 16)
        .transpose(0, 4, 3, 1, 2)
        .reshape(groups * ROWS, count * BLOCKS)[:rows, : -(-columns // BLOCK)]
        for start in (0, 512)
    )
    return codes[:rows, :columns], scales, minimum


def padded(
    codes: Array, scales: Array, minimum: Array | None, centre: int
) -> tuple[Array, Array, Array]:
    """To whole chunks: what is added weighs nothing."""
    rows, columns = -codes.shape[0] % (CORES * ROWS), -codes.shape[1] % COLUMNS
    blocks = columns * scales.shape[1] // codes.shape[1]
    minimum = np.zeros_like(scales) if minimum is None else minimum
    return (
        np.pad(codes, ((0, rows), (0, columns)), constant_values=centre),
        np.pad(scales, ((0, rows), (0, blocks))),
        np.pad(minimum, ((0, rows), (0, blocks))),
    )


def table(x: Array) -> Array:
    """x float32 [K], K a multiple of 256: int8 [K / 256, 576]. Each block of 32 has its power of
    two, and mantissas of 15 bits and a sign."""
    blocks = np.asarray(x, np.float32).reshape(-1, BLOCKS, BLOCK)
    largest = np.abs(blocks).max(axis=-1).view(np.uint32) >> 23
    exponent = np.clip(largest.astype(np.int32), 40, 220)
    scaled = np.ldexp(blocks.astype(np.float64), 141 - exponent[..., None])
    mantissas = np.rint(np.clip(scaled, -32767, 32767)).astype(np.int16)
    out = np.zeros((len(blocks), TABLE_BYTES), np.uint8)
    out[:, :512] = mantissas.reshape(len(blocks), -1).view(np.uint8)
    out[:, 512:544] = mantissas.sum(axis=-1, dtype=np.int32).view(np.uint8)
    out[:, 544:560] = (exponent - 14 << 7).astype(np.uint16).view(np.uint8)
    return out.view(np.int8)


def activations(table: Array) -> Array:
    """What a table stands for: float64 [K]."""
    parts = table.view(np.uint8)
    mantissas = np.ascontiguousarray(parts[:, :512]).view(np.int16).reshape(-1, BLOCKS, BLOCK)
    scales = from_bits(np.ascontiguousarray(parts[:, 544:560]).view(np.uint16))
    return (mantissas * scales[..., None].astype(np.float64)).reshape(-1)


def qlinear(chunks: Array, table: Array) -> Array:
    """y float64 [128 * fours]: chunks [fours, K / 256, 4, 5120] by a table [K / 256, 576]."""
    return dense(*unpack(chunks, *shape_of(chunks)), CENTRE) @ activations(table)


def shape_of(chunks: Array) -> tuple[int, int]:
    """Rows and columns, with those that weigh nothing."""
    return chunks.shape[0] * CORES * ROWS, chunks.shape[1] * COLUMNS


def dense(codes: Array, scales: Array, minimum: Array, centre: int) -> Array:
    """The weights, float64 [N, K]."""
    blocks = (codes.astype(np.float64) - centre).reshape(*scales.shape, -1)
    return np.asarray(blocks * scales[..., None] + minimum[..., None]).reshape(codes.shape)
