"""aie.iron: the runtime sequence, a function (1.4) or the lines within `with rt.sequence(...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from npu_kernels.iron_sim import record
from npu_kernels.iron_sim.aie.dataflow import HOST, ObjectFifoHandle
from npu_kernels.iron_sim.aie.device import pinned
from npu_kernels.iron_sim.aie.taps import TensorAccessPattern
from npu_kernels.iron_sim.aie.types import is_type, refuse, type_of
from npu_kernels.iron_sim.aie.worker import Buffer, Worker, WorkerRuntimeBarrier
from npu_kernels.iron_sim.faults import DesignFault, not_simulated
from npu_kernels.iron_sim.value import plain

_active: ContextVar[_Sequence | None] = ContextVar("sequence", default=None)


def active_sequence(call: str) -> _Sequence:
    sequence = _active.get()
    if sequence is None:
        raise RuntimeError(f"{call}: only within a runtime sequence")
    return sequence


class RuntimeData:
    """A host buffer, as the sequence holds it."""

    def __init__(self, number: int, arr_type: Any) -> None:
        self.number, self.arr_type = number, arr_type
        self.type = type_of(arr_type)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    def default_tap(self) -> TensorAccessPattern:
        return TensorAccessPattern((1, self.type.size), 0, [self.type.size], [1])


class Task:
    """What fill and drain return."""

    def __init__(self, transfer: record.Transfer) -> None:
        self.recorded = transfer

    def __getattr__(self, name: str) -> Any:
        raise not_simulated(f"{name} of a single transfer; use a TaskGroup")


class TaskGroup:
    """Transfers that are awaited and freed together."""

    def __init__(self, id: int | None = None) -> None:
        self._sequence = active_sequence("TaskGroup()")
        self.transfers: list[record.Transfer] = []
        self.finished = False
        self._sequence.groups.append(self)

    def finish(self) -> None:
        self._sequence.finish(self)

    def __getattr__(self, name: str) -> Any:
        raise not_simulated(f"TaskGroup.{name}")


class _Sequence:
    """A sequence while it is written down."""

    def __init__(self, mixes: bool) -> None:
        self.steps: list[record.Step] = []
        self.handles: list[ObjectFifoHandle] = []
        self.groups: list[TaskGroup] = []
        self._count = 0
        self._mixes = mixes  # transfers in groups with those in none
        self._loose: list[record.Transfer] = []  # in no group: awaited and freed at the end

    def transfer(
        self, handle: ObjectFifoHandle, data: Any, tap: Any, group: TaskGroup | None, wait: bool
    ) -> Task:
        if not isinstance(data, RuntimeData):
            raise ValueError(f"{handle.name}: {data!r} is not one of the sequence's host buffers")
        handle.ends_at(HOST)
        if handle not in self.handles:
            self.handles.append(handle)
        tap = data.default_tap() if tap is None else tap
        transfer = record.Transfer(
            self._count,
            handle.name,
            handle.produces,
            data.number,
            int(tap.offset),
            tuple(map(int, tap.sizes)),
            tuple(map(int, tap.strides)),
            wait,
        )
        self._count += 1
        self.steps.append(record.Push(transfer))
        if group is not None:
            if group.finished:
                raise ValueError(f"{handle.name}: its TaskGroup is finished already")
            group.transfers.append(transfer)
        else:
            self._loose.append(transfer)
        return Task(transfer)

    def finish(self, group: TaskGroup) -> None:
        if group.finished:
            raise ValueError("a TaskGroup is finished twice")
        group.finished = True
        self._end(group.transfers)

    def _end(self, transfers: list[record.Transfer]) -> None:
        self.steps += [record.Await(t) for t in transfers if t.awaited]
        self.steps += [record.Free(t) for t in transfers if not t.awaited]

    def write(self, buffer: Buffer, index: Any, value: Any) -> None:
        if buffer.type.dtype.itemsize != 4:
            raise not_simulated(f"{buffer.name}[{index}] of {buffer.type.dtype}: words only")
        if not 0 <= plain(index) < buffer.type.size:
            raise ValueError(f"{buffer.name}[{index}] of {buffer.type.size} words")
        word = np.asarray(plain(value), buffer.type.dtype).view(np.int32).item()
        self.steps.append(record.Write(buffer.name, int(plain(index)), word))

    def set_barrier(self, barrier: WorkerRuntimeBarrier, value: int) -> None:
        self.steps.append(record.SetBarrier(barrier.recorded.name, int(value)))

    def close(self) -> None:
        if any(not group.finished for group in self.groups):
            raise ValueError("the sequence ends with a TaskGroup that is not finished")
        if self._loose and self.groups and not self._mixes:
            raise ValueError("some transfers are in task groups, others in none")
        self._end(self._loose)
        self._loose = []


class Runtime:
    def __init__(
        self, seq_fn: Callable[..., object] | None = None, fn_args: Any = None, **options: Any
    ) -> None:
        self._mixes = not options.pop("strict_task_groups", True)
        refuse("Runtime", **options)
        self._body, self._arguments = seq_fn, list(fn_args or [])
        self.workers: list[Worker] = []
        self.data: list[RuntimeData] = []
        self._written: _Sequence | None = None
        for argument in self._handles(self._arguments):
            argument.ends_at(HOST)

    def _handles(self, arguments: Any) -> Iterator[ObjectFifoHandle]:
        for argument in arguments:
            if isinstance(argument, ObjectFifoHandle):
                yield argument
            elif isinstance(argument, list | tuple):
                yield from self._handles(argument)

    def sequence(self, *arguments: Any) -> Any:
        """rt.sequence(type, ...) as a context, or (for a while) rt.sequence(function, [types])."""
        if arguments and callable(arguments[0]) and not is_type(arguments[0]):
            self._body, self._arguments = arguments[0], list(arguments[1])
            return None
        return self._context(arguments)

    @contextmanager
    def _context(self, types: Any) -> Iterator[Any]:
        self.data = [RuntimeData(n, type_) for n, type_ in enumerate(types)]
        self._written = _Sequence(self._mixes)
        token = _active.set(self._written)
        try:
            yield self.data[0] if len(self.data) == 1 else tuple(self.data)
            self._written.close()
        finally:
            _active.reset(token)

    def written(self) -> _Sequence:
        """The whole sequence; a body runs now, when all workers and fifos are known."""
        if self._body is None:
            if self._written is None:
                raise DesignFault("sequence", "Runtime", "it has no sequence")
            return self._written
        sequence = _Sequence(mixes=True)
        self.data = []
        arguments = [self._argument(argument) for argument in self._arguments]
        token = _active.set(sequence)
        try:
            self._body(*arguments)
            sequence.close()
        finally:
            _active.reset(token)
        return sequence

    def _argument(self, argument: Any) -> Any:
        if is_type(argument):
            self.data.append(RuntimeData(len(self.data), argument))
            return self.data[-1]
        known = (ObjectFifoHandle, Buffer, WorkerRuntimeBarrier, list, tuple)
        if not isinstance(argument, known):
            raise not_simulated(f"{argument!r} among a Runtime's fn_args")
        return argument

    # The verbs of `with rt.sequence(...)`

    def start(self, *workers: Worker) -> None:
        self.workers += workers

    def task_group(self) -> TaskGroup:
        return TaskGroup()

    def finish_task_group(self, task_group: TaskGroup) -> None:
        task_group.finish()

    def fill(
        self,
        in_fifo: ObjectFifoHandle,
        source: Any,
        tap: Any = None,
        task_group: TaskGroup | None = None,
        wait: bool = False,
        placement: Any = None,
        **unknown: Any,
    ) -> None:
        refuse("Runtime.fill", **unknown)
        self._placed(in_fifo, placement)
        in_fifo.fill(source, tap, wait, group=task_group)

    def drain(
        self,
        out_fifo: ObjectFifoHandle,
        dest: Any,
        tap: Any = None,
        task_group: TaskGroup | None = None,
        wait: bool = False,
        placement: Any = None,
        **unknown: Any,
    ) -> None:
        refuse("Runtime.drain", **unknown)
        self._placed(out_fifo, placement)
        out_fifo.drain(dest, tap, wait, group=task_group)

    def _placed(self, handle: ObjectFifoHandle, placement: Any) -> None:
        if pinned(placement):
            handle.tile = placement

    def inline_ops(self, inline_func: Callable[..., object], inline_args: Any) -> None:
        active_sequence("inline_ops")
        inline_func(*inline_args)

    def set_barrier(self, barrier: WorkerRuntimeBarrier, value: int) -> None:
        barrier.set(value)

    def enable_trace(self, trace_size: int | None = None, *_: Any, **options: Any) -> None:
        refuse("enable_trace", trace_size=trace_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"Runtime.{name}")
