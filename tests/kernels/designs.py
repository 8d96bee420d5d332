"""Small IRON designs: one worker that copies, and the parts to make others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npu_kernels.iron_sim import installed, record_of
from npu_kernels.iron_sim.record import Record


def tensor(*shape: int, dtype: Any = np.int32) -> Any:
    return np.ndarray[shape, np.dtype[dtype]]


def copy(source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> None:
    target[...] = source


KERNELS = {"copy": copy}


def design(build: Callable[[Any], Any]) -> Record:
    """The record of what build(aie.iron) resolves or returns, on an npu2."""
    with installed():
        import aie.iron as iron
        from aie.iron.device import from_name

        iron.set_current_device(from_name("npu2", n_cols=None))
        return record_of(build(iron))


def program(
    iron: Any, sequence: Callable[..., object], arguments: Sequence[Any], *workers: Any
) -> Any:
    runtime = iron.Runtime(sequence, list(arguments))
    return iron.Program(iron.get_current_device(), runtime, workers=list(workers))


def copy_kernel(iron: Any, type_: Any) -> Any:
    return iron.ExternalFunction("copy", source_file="copy.cc", arg_types=[type_, type_])


def copying(
    size: int = 64,
    count: int = 4,
    *,
    dtype: Any = np.int32,
    depth: int = 2,
    stack: int | None = 1024,
    body: Callable[..., object] | None = None,
    sequence: Callable[..., object] | None = None,
    more: Callable[[Any], list[Any]] = lambda iron: [],
    **worker: Any,
) -> Record:
    """count objects go in, are copied and come out; body and sequence can be another's."""

    def built(iron: Any) -> Any:
        from aie.iron.controlflow import range_

        object_type = tensor(size, dtype=dtype)
        come = iron.ObjectFifo(object_type, name="in", depth=depth)
        leave = iron.ObjectFifo(object_type, name="out", depth=depth)

        def copies(come: Any, leave: Any, copy: Any, *_: Any) -> None:
            for _n in range_(count):
                source, target = come.acquire(1), leave.acquire(1)
                copy(source, target)
                come.release(1)
                leave.release(1)

        def through(a: Any, b: Any, come: Any, leave: Any) -> None:
            group = iron.TaskGroup()
            come.fill(a, group=group)
            leave.drain(b, wait=True, group=group)
            group.finish()

        arguments = [come.cons(), leave.prod(), copy_kernel(iron, object_type), *more(iron)]
        host = tensor(size * count, dtype=dtype)
        runner = iron.Worker(body or copies, arguments, stack_size=stack, **worker)
        hosts = [host, host, come.prod(), leave.cons()]
        return program(iron, sequence or through, hosts, runner)

    return design(built)
