"""Designs whose cores have a column each, and so all four channels of its shim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_kernels import designs
from npu_kernels.manifest import DATA_BYTES_MAX, STACK_BYTES

COLUMNS = 8  # of the array
RUN = 64  # float32s: transfers take whole runs of so many


def columns_of(count: int) -> int:
    """How many columns share so many things evenly."""
    return next(columns for columns in range(COLUMNS, 0, -1) if count % columns == 0)


def tile_of(count: int, values: int) -> int:
    """Of so many things of a core those that it holds at once, each with so many float32s: all, or
    the largest part in whole runs that fits.
    """
    most, runs = (DATA_BYTES_MAX - STACK_BYTES) // (4 * values), count // RUN
    parts = (count // n for n in range(1, runs + 1) if runs % n == 0)
    return next(part for part in parts if part <= most)


def part(size: int, count: int, number: int) -> Any:
    """One of `count` equal parts of a buffer, as a transfer takes it."""
    return designs.span(size, number * (size // count), size // count)


class Column:
    """A column: its core, and fifos between that and the host, two each way at the most."""

    def __init__(
        self,
        number: int,
        filled: Mapping[str, Any],
        drained: Mapping[str, Any],
        *,
        depth: int = 1,
        depths: Mapping[str, int] | None = None,
        row: int = 2,
    ) -> None:
        from aie.iron import ObjectFifo
        from aie.iron.device import Tile

        def fifo(name: str, type_: Any) -> Any:
            held = (depths or {}).get(name, depth)
            return ObjectFifo(type_, name=f"{name}{number}", depth=held)

        ins = [fifo(name, type_) for name, type_ in filled.items()]
        outs = [fifo(name, type_) for name, type_ in drained.items()]
        shim, self._core = Tile(number, 0), Tile(number, row)
        self.host = [f.prod(tile=shim) for f in ins] + [f.cons(tile=shim) for f in outs]
        self.ends = [f.cons() for f in ins] + [f.prod() for f in outs]  # the core's
        self.worker: Any = None

    def runs(self, body: Callable[..., None], *arguments: Any) -> Column:
        """The core's body takes its ends, then the arguments."""
        self.worker = designs.worker(body, [*self.ends, *arguments], tile=self._core)
        return self

    def calls(self, kernel: Any, *values: int) -> Column:
        """The core takes one object of each fifo at a time and calls the kernel on them."""

        def body(*given: Any) -> None:
            *fifos, kernel = given
            kernel(*(fifo.acquire(1) for fifo in fifos), *values)
            for fifo in fifos:
                fifo.release(1)

        return self.runs(body, kernel)


def program(
    sequence: Callable[[Sequence[Any], Sequence[Sequence[Any]]], None],
    hosts: Sequence[Any],
    columns: Sequence[Column],
) -> Any:
    """`sequence` takes the host's buffers, and its ends of each column's fifos."""

    def written(*given: Any) -> None:
        ends = iter(given[len(hosts) :])
        sequence(given[: len(hosts)], [[next(ends) for _ in each.host] for each in columns])

    ends = [end for column in columns for end in column.host]
    return designs.program(written, [*hosts, *ends], [column.worker for column in columns])


def rows_of(size: int, start: int, count: int, values: int, apart: int, run: int = RUN) -> Any:
    """Of a buffer so many values of each of `count` tokens, in runs: from `start` on, and every
    `apart` values again.
    """
    from aie.helpers.taplib import TensorAccessPattern

    if count == 1 or apart == values:
        return designs.span(size, start, count * values)
    return TensorAccessPattern((1, size), start, [1, count, values // run, run], [0, apart, run, 1])


def value_by_value(folder: Path, symbol: str, N: int, T: int, apart: Sequence[int]) -> Any:
    """A kernel of two inputs and an output of N values of each of T tokens, a multiple of RUN: a
    part of them on one core of each column. `apart`: how far each input's tokens are apart.
    """
    from aie import iron

    count = columns_of(N // RUN)
    tile = tile_of(N // count, 2 * 3)
    kernel, types = designs.external(folder, symbol, {"TILE": tile, "N": tile})
    steps = [*apart, N]
    sizes = [(T - 1) * step + N for step in steps]
    *inputs, output = (name for name in types if name != "n")

    def sequence(buffers: Sequence[Any], ends: Sequence[Sequence[Any]]) -> None:
        *ins, out = buffers
        group = iron.TaskGroup()
        for number, (*fills, drain) in enumerate(ends):
            share = N // count
            *own, to = (
                rows_of(size, number * share, T, share, step)
                for size, step in zip(sizes, steps, strict=True)
            )
            for buffer, fill, tap in zip(ins, fills, own, strict=True):
                fill.fill(buffer, tap=tap, group=group)
            drain.drain(out, tap=to, wait=True, group=group)
        group.finish()

    filled, drained = {name: types[name] for name in inputs}, {output: types[output]}
    columns = [
        Column(number, filled, drained, depth=2).calls(kernel, tile) for number in range(count)
    ]
    return program(sequence, [designs.array(size) for size in sizes], columns)
