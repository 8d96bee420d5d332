"""aie.iron: what runs on a core, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from npu_kernels.iron_sim import record
from npu_kernels.iron_sim.aie.dataflow import ObjectFifo, ObjectFifoHandle
from npu_kernels.iron_sim.aie.device import pinned
from npu_kernels.iron_sim.aie.types import parameter_of, refuse, type_of
from npu_kernels.iron_sim.faults import not_simulated


class Kernel:
    """A function in an object file."""

    def __init__(self, name: str, bin_name: str, arg_types: Any = ()) -> None:
        self.bin_name = bin_name
        self.recorded = record.Kernel(name, tuple(map(parameter_of, arg_types)))

    def __call__(self, *arguments: Any) -> None:
        raise not_simulated(
            f"a call of '{self.recorded.symbol}', which is not in its Worker's fn_args"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"{type(self).__name__}.{name}")


class ExternalFunction(Kernel):
    """A function compiled from its source, one object for each."""

    def __init__(
        self,
        name: str,
        object_file_name: str | None = None,
        source_file: str | None = None,
        source_string: str | None = None,
        arg_types: Any = (),
        include_dirs: Any = (),
        compile_flags: Any = (),
        **unknown: Any,
    ) -> None:
        refuse("ExternalFunction", **unknown)
        if source_file is None and source_string is None:
            raise ValueError(f"{name}: neither source_file nor source_string")
        super().__init__(name, object_file_name or f"{name}.o", arg_types)
        self.recorded = record.Kernel(
            name,
            self.recorded.parameters,
            None if source_file is None else str(source_file),
            tuple(compile_flags),
            tuple(map(str, include_dirs)),
        )


class Buffer:
    """L1 memory that a worker's body holds, and of which the sequence may write words."""

    _unnamed = count()

    def __init__(
        self,
        type: Any = None,
        initial_value: Any = None,
        name: str | None = None,
        placement: Any = None,
        use_write_rtp: bool = False,
        *,
        tile: Any = None,
        **unknown: Any,
    ) -> None:
        refuse("Buffer", **unknown)
        if type is None and initial_value is None:
            raise ValueError("a Buffer wants a type, an initial_value, or both")
        self.initial = None if initial_value is None else np.asarray(initial_value)
        if type is None:
            assert self.initial is not None
            self.type = record.Type(self.initial.shape, self.initial.dtype)
        else:
            self.type = type_of(type)
        self.name = name or f"buf_{next(Buffer._unnamed)}"
        self.pinned = pinned(tile, placement)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    def __setitem__(self, index: Any, value: Any) -> None:
        from npu_kernels.iron_sim.aie.runtime import active_sequence

        active_sequence(f"{self.name}[...] =").write(self, index, value)

    def __getitem__(self, index: Any) -> Any:
        raise not_simulated(f"{self.name}[...] read outside of a worker's body")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"Buffer.{name}")


class WorkerRuntimeBarrier:
    """What a core waits for until the sequence has written its parameters."""

    _unnamed = count()

    def __init__(self, initial_value: int = 0) -> None:
        self.recorded = record.Barrier(f"barrier{next(self._unnamed)}", initial_value)

    def set(self, value: int) -> None:
        from npu_kernels.iron_sim.aie.runtime import active_sequence

        active_sequence("WorkerRuntimeBarrier.set").set_barrier(self, value)

    def wait_for_value(self, value: int) -> None:
        raise not_simulated("a barrier that is not in its Worker's fn_args")

    release_with_value = wait_for_value


class Worker:
    def __init__(
        self,
        core_fn: Callable[..., object] | None,
        fn_args: Any = None,
        placement: Any = None,
        while_true: bool = True,
        stack_size: int | None = None,
        allocation_scheme: str | None = None,
        trace: Any = None,
        trace_events: Any = None,
        *,
        tile: Any = None,
        **unknown: Any,
    ) -> None:
        refuse("Worker", **unknown)
        self.body, self.arguments = core_fn, list(fn_args or [])
        self.while_true, self.stack_size = while_true, stack_size
        self.pinned = pinned(tile, placement)
        for argument in record.flat(self.arguments):
            if isinstance(argument, ObjectFifo):
                raise ValueError(f"{argument.name}: a Worker takes its prod() or cons()")
            if isinstance(argument, ObjectFifoHandle):
                argument.ends_at(self)

    def given(self, kind: type) -> list[Any]:
        return [argument for argument in record.flat(self.arguments) if isinstance(argument, kind)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"Worker.{name}")
