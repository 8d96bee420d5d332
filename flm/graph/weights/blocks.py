"""Quantised matrices as exact blocks: weight = scale * (code - centre) + minimum.

The common tongue of every weight format: nothing is rounded on the way in, so the graph computes
with exactly the numbers the file holds. Codes are centred, 8 of 16 or 128 of 256: an activation's
rounding error is multiplied by (code - centre), so the smaller that is the better, and a format's
own minimum moves to the middle of its range.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flm.devices.device import Array

CACHED_WEIGHTS = 1 << 17  # rounded at a time, so that every pass finds the last one's in the cache
LARGEST_AT = (-6.5, -7.1, -7.7, -8.4, -9.0)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How the codes of one row are blocked. `bits` is 4 or 8."""

    bits: int
    block: int  # weights that share a scale
    minimum: bool  # whether each block also adds a minimum

    @property
    def centre(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def weight_bytes(self) -> float:
        """Of a code with its share of the block's scale and minimum."""
        return self.bits / 8 + 4 * (1 + self.minimum) / self.block


@dataclass(frozen=True, slots=True)
class Blocks:
    format: BlockFormat
    codes: Array  # [rows, blocks, block] uint8
    scales: Array  # [rows, blocks] float32
    minimum: Array | None  # [rows, blocks] float32

    def dense(self) -> Array:
        """[rows, blocks * block] float32."""
        weights: Array = self.codes.astype(np.float32) - self.format.centre
        weights *= self.scales[..., None]
        if self.minimum is not None:
            weights += self.minimum[..., None]
        return weights.reshape(len(weights), -1)

    def packed(self) -> Array:
        """Codes as onnxruntime wants them: [rows, blocks, block * bits / 8], low nibble first."""
        if self.format.bits == 8:
            return self.codes
        pairs = np.ascontiguousarray(self.codes).view("<u2")
        packed: Array = (pairs | (pairs >> 4)).astype(np.uint8)
        return packed

    def held_as(self, format: BlockFormat) -> "Blocks":
        """The same weights in more bits or smaller blocks, none with a minimum."""
        assert self.minimum is None
        codes = self.codes + np.uint8(format.centre - self.format.centre)
        codes = codes.reshape(len(codes), -1, format.block)
        scales = self.scales.repeat(self.format.block // format.block, axis=1)
        return Blocks(format, codes, scales, None)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix still in its file, read by rows. `format` None: stored as floats."""

    name: str
    shape: tuple[int, int]  # (rows, columns) = (outputs, inputs)
    format: BlockFormat | None
    read_blocks: Callable[[Array], Blocks]  # row numbers -> their blocks
    read_dense: Callable[[Array], Array]  # row numbers -> [n, columns] float32
    bias: Array | None = None  # [rows] float32, added to the product

    def reordered(self, order: Array) -> "Matrix":
        """The same matrix with its rows in another order: new row i is old row order[i]."""
        return replace(
            self,
            shape=(len(order), self.shape[1]),
            read_blocks=lambda rows: self.read_blocks(order[rows]),
            read_dense=lambda rows: self.read_dense(order[rows]),
            bias=None if self.bias is None else self.bias[order],
        )

    def columns_reordered(self, order: Array) -> "Matrix":
        """New column i is old column order[i]; columns that share a scale must move together."""
        if self.format is None:
            return replace(self, read_dense=lambda rows: self.read_dense(rows)[:, order])
        runs = order.reshape(-1, self.format.block)
        whole = runs[:, 0] // self.format.block
        assert (runs == whole[:, None] * self.format.block + np.arange(self.format.block)).all()

        def read_blocks(rows: Array) -> Blocks:
            blocks = self.read_blocks(rows)
            minimum = None if blocks.minimum is None else blocks.minimum[:, whole]
            return Blocks(blocks.format, blocks.codes[:, whole], blocks.scales[:, whole], minimum)

        return replace(self, read_blocks=read_blocks, read_dense=lambda r: read_blocks(r).dense())

    def halved(self, count: int) -> tuple["Matrix", "Matrix"]:
        """Each of `count` stacked matrices' first rows, and its last."""
        rows = np.arange(self.shape[0]).reshape(count, 2, -1)
        return self.reordered(rows[:, 0].reshape(-1)), self.reordered(rows[:, 1].reshape(-1))

    def widened(self, rows: int, columns: int) -> "Matrix":
        """With zeros for the rows, and for the columns of one of floats, that it has less."""
        height, width = self.shape
        if (rows, columns) == self.shape:
            return self
        assert self.format is None or columns == width, self.name

        def spread(values: Array, inside: Array, empty: int, width: int) -> Array:
            found = np.full((len(inside), width, *values.shape[2:]), empty, values.dtype)
            found[inside, : values.shape[1]] = values
            return found

        def read_blocks(numbers: Array) -> Blocks:
            inside = numbers < height
            some = self.read_blocks(numbers[inside])
            count = some.scales.shape[1]
            minimum = some.minimum
            return Blocks(
                some.format,
                spread(some.codes, inside, some.format.centre, count),
                spread(some.scales, inside, 0, count),
                None if minimum is None else spread(minimum, inside, 0, count),
            )

        def read_dense(numbers: Array) -> Array:
            inside = numbers < height
            return spread(self.read_dense(numbers[inside]), inside, 0, columns)

        return replace(
            self,
            shape=(rows, columns),
            read_blocks=read_blocks,
            read_dense=read_dense,
            bias=None if self.bias is None else np.pad(self.bias, (0, rows - height)),
        )

    @property
    def is_exact_without_minimums(self) -> bool:
        """Whether held_as rounds nothing."""
        return self.format is not None and not self.format.minimum

    def held_as(self, format: BlockFormat) -> "Matrix":
        """The same in more bits or smaller blocks without minimums; floats, and what has minimums,
        rounded.
        """

        def read_blocks(rows: Array) -> Blocks:
            if self.is_exact_without_minimums:
                return self.read_blocks(rows).held_as(format)
            return quantize(self.read_dense(rows), format)

        return replace(
            self,
            format=format,
            read_blocks=read_blocks,
            read_dense=lambda rows: read_blocks(rows).dense(),
        )


def floats(name: str, shape: tuple[int, int], read: Callable[[Array], Array]) -> Matrix:
    """A matrix that is stored as floats."""

    def refuse(rows: Array) -> Blocks:
        raise AssertionError(f"{name} is stored as floats, not in blocks")

    return Matrix(name, shape, None, refuse, read)


def dense(name: str, weights: Array) -> Matrix:
    """A matrix that is at hand, as floats."""
    return floats(name, (weights.shape[0], weights.shape[1]), lambda rows: weights[rows])


def interleaved(first: Matrix, second: Matrix) -> Matrix:
    """Their rows by turns; they are alike in shape and format."""
    assert (first.shape, first.format) == (second.shape, second.format), first.name

    def merged(rows: Array, of_first: Array, of_second: Array) -> Array:
        both = np.empty((len(rows), *of_first.shape[1:]), of_first.dtype)
        both[rows % 2 == 0], both[rows % 2 == 1] = of_first, of_second
        return both

    def halves(rows: Array) -> tuple[Array, Array]:
        return rows[rows % 2 == 0] // 2, rows[rows % 2 == 1] // 2

    def read_blocks(rows: Array) -> Blocks:
        a, b = (m.read_blocks(half) for m, half in zip((first, second), halves(rows), strict=True))
        minimum = None
        if a.minimum is not None and b.minimum is not None:
            minimum = merged(rows, a.minimum, b.minimum)
        codes, scales = merged(rows, a.codes, b.codes), merged(rows, a.scales, b.scales)
        return Blocks(a.format, codes, scales, minimum)

    def read_dense(rows: Array) -> Array:
        of_first, of_second = halves(rows)
        return merged(rows, first.read_dense(of_first), second.read_dense(of_second))

    name, (rows, columns) = f"{first.name}+{second.name}", first.shape
    bias = None
    if first.bias is not None and second.bias is not None:
        bias = np.stack([first.bias, second.bias], axis=-1).reshape(-1)
    return Matrix(name, (2 * rows, columns), first.format, read_blocks, read_dense, bias)


def quantized(matrix: Matrix, bits: int) -> Matrix:
    """The same matrix, rounded into symmetric blocks of 32 as it is read. Rows that 32 does not
    divide stay floats.
    """
    format = BlockFormat(bits, 32, minimum=False)
    return matrix if matrix.shape[1] % format.block else matrix.held_as(format)


def quantize(weights: Array, format: BlockFormat) -> Blocks:
    """Round floats [rows, columns] to the nearest codes. Of normally distributed weights the
    relative RMS error is 0.6 % at 8 bits and 8.1 % at 4. A block with a value that is not a number
    has a scale that is none.
    """
    assert not format.minimum, format
    # In order, or sums would be taken in another one.
    blocks = np.ascontiguousarray(weights).reshape(len(weights), -1, format.block)
    codes = np.empty(blocks.shape, np.uint8)
    scales = np.empty(blocks.shape[:2], np.float32)
    height = max(1, CACHED_WEIGHTS // weights.shape[1])
    scale_of = _fitted if format.bits == 4 else _spanning
    for at in range(0, len(blocks), height):
        part = slice(at, at + height)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scales[part], inverse = scale_of(blocks[part])
            codes[part] = _nearest(blocks[part], inverse, format.bits) + format.centre
    return Blocks(format, codes, scales, None)


def _nearest(blocks: Array, inverse: Array, bits: int) -> Array:
    """Signed codes as floats. `inverse` [rows, blocks] is one over each block's scale."""
    codes = blocks * inverse[..., None]
    np.rint(codes, out=codes)
    return np.clip(codes, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, out=codes)


def _inverse(scales: Array) -> Array:
    return np.where(scales == 0, 0, 1 / scales).astype(np.float32)


def _spanning(blocks: Array) -> tuple[Array, Array]:
    """(scales, their inverses) that put each block's largest value at the last code."""
    scales = (np.maximum(blocks.max(-1), -blocks.min(-1)) / 127).astype(np.float32)
    return scales, _inverse(scales)


def _fitted(blocks: Array) -> tuple[Array, Array]:
    """(scales, inverses to round with): the best of a few in squared error. Codes that a block's
    largest value is put at are tried in turn; each time the scale that fits the codes best is
    (codes . weights) / (codes . codes), and the error falls by the square of the first over the
    second.
    """
    high, low = blocks.max(-1), blocks.min(-1)
    largest = np.where(high > -low, high, low)
    scales, inverses = largest / -8, _inverse(largest / -8)
    best = np.zeros_like(scales)
    for code in LARGEST_AT:
        inverse = _inverse(largest / code)
        codes = _nearest(blocks, inverse, 4)
        shared = np.einsum("rbk,rbk->rb", codes, blocks)
        fit = shared / np.einsum("rbk,rbk->rb", codes, codes)
        better = shared * fit > best
        best = np.where(better, shared * fit, best)
        scales, inverses = np.where(better, fit, scales), np.where(better, inverse, inverses)
    return scales, inverses
