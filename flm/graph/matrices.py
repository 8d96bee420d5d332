"""Weight matrices written to the store, in slabs, in the shapes the functions take.

Slabs are converted on as many threads as there are cores: numpy lets go of Python's lock.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from flm.devices.device import Array
from flm.devices.machine import cores_physical
from flm.graph.emit import Stored, WeightStore, finite
from flm.graph.weights.blocks import BlockFormat, Matrix

SLAB_BYTES = 4 * 2**20  # of float32 weights that a thread converts at a time


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Matrices with the same inputs, stacked by rows. `format` None: floats [columns, rows]."""

    rows: int
    columns: int
    format: BlockFormat | None
    codes: Stored
    scales: Stored | None = None
    minimum: Stored | None = None


def store_matrices(store: WeightStore, matrices: Sequence[Matrix]) -> StoredMatrix:
    """Written once: a second call with the same matrices finds the first one's bytes."""
    name = "+".join(matrix.name for matrix in matrices)
    format, columns = matrices[0].format, matrices[0].shape[1]
    assert all((m.format, m.shape[1]) == (format, columns) for m in matrices), name
    rows = sum(matrix.shape[0] for matrix in matrices)
    if format is None:
        dense = store.get(name) or _write_dense(store, name, matrices, (columns, rows))
        return StoredMatrix(rows, columns, None, dense)
    if not store.get(name + ".codes"):
        _write_blocks(store, name, matrices, format, (rows, columns))
    found = [store.get(name + suffix) for suffix in (".codes", ".scales", ".minimum")]
    codes, scales, minimum = found
    assert codes
    return StoredMatrix(rows, columns, format, codes, scales, minimum)


def store_rows(store: WeightStore, matrix: Matrix) -> StoredMatrix:
    """The same, to be gathered by row: floats [rows, columns], minimums [rows, blocks]."""
    if matrix.format is None:
        dense = store.get(matrix.name + ".rows") or _write_rows(store, matrix)
        return StoredMatrix(*matrix.shape, None, dense)
    stored = store_matrices(store, [matrix])
    assert stored.format
    width = stored.columns * stored.format.bits // 8
    codes = stored.codes.reshaped(stored.codes.name + ".rows", (stored.rows, width))
    minimum = stored.minimum and _turned(store, stored.minimum)
    return StoredMatrix(stored.rows, stored.columns, stored.format, codes, stored.scales, minimum)


def _write_dense(
    store: WeightStore, name: str, matrices: Sequence[Matrix], shape: tuple[int, int]
) -> Stored:
    stored, out = store.reserve(name, shape, "float32")

    def write(matrix: Matrix, rows: Array, place: slice) -> None:
        out[:, place] = finite(matrix.name, matrix.read_dense(rows)).T

    _in_slabs(matrices, write)
    return stored


def _write_rows(store: WeightStore, matrix: Matrix) -> Stored:
    stored, out = store.reserve(matrix.name + ".rows", matrix.shape, "float32")

    def write(matrix: Matrix, rows: Array, place: slice) -> None:
        out[place] = finite(matrix.name, matrix.read_dense(rows))

    _in_slabs([matrix], write)
    return stored


def _write_blocks(
    store: WeightStore,
    name: str,
    matrices: Sequence[Matrix],
    format: BlockFormat,
    shape: tuple[int, int],
) -> None:
    rows, columns = shape
    count = columns // format.block
    packed = (rows, count, format.block * format.bits // 8)
    _, codes = store.reserve(name + ".codes", packed, "uint8")
    _, scales = store.reserve(name + ".scales", (rows, count), "float32")
    if format.minimum:
        _, minimum = store.reserve(name + ".minimum", (count, rows), "float32")

    def write(matrix: Matrix, rows: Array, place: slice) -> None:
        blocks = matrix.read_blocks(rows)
        codes[place], scales[place] = blocks.packed(), finite(matrix.name, blocks.scales)
        if blocks.minimum is not None:
            minimum[:, place] = finite(matrix.name, blocks.minimum).T

    _in_slabs(matrices, write)


def _turned(store: WeightStore, minimum: Stored) -> Stored:
    name = minimum.name + ".rows"
    by_block = np.memmap(store.path, minimum.dtype, "r", minimum.offset, minimum.shape)
    return store.get(name) or store.put(name, by_block.T)


def _in_slabs(matrices: Sequence[Matrix], write: Callable[[Matrix, Array, slice], None]) -> None:
    """`write` gets each matrix's rows, some at a time, and where they stand among all."""
    slabs: list[tuple[Matrix, Array, slice]] = []
    start = 0
    for matrix in matrices:
        rows, columns = matrix.shape
        height = max(1, SLAB_BYTES // (4 * columns))
        for at in range(0, rows, height):
            numbers = np.arange(at, min(at + height, rows))
            slabs.append((matrix, numbers, slice(start + at, start + at + len(numbers))))
        start += rows
    with ThreadPoolExecutor(min(cores_physical(), len(slabs))) as threads:
        for done in [threads.submit(write, *slab) for slab in slabs]:
            done.result()
