"""A lane's token, step by step: runs and bindings are made once, for as long as its memory stays
where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flm.devices.cpu import CpuBuffer
from flm.devices.device import OUT
from flm.devices.xrt.kernels import Kernel, Run
from flm.devices.xrt.memory import BOTH, Twin
from flm.devices.xrt.plan import Copied, Place
from flm.devices.xrt.ready import ReadyDispatch, ReadyPart, ReadyPlan
from npu_kernels.binding import Constant, Memory
from npu_kernels.manifest import evaluate

Values = Mapping[str, str]  # formulas over offset and length
ALL = range(2**31)  # rows, however many a lane has


class Lane:
    """`memory` are the lane's own parts, `twins` what the device has of them."""

    def __init__(
        self,
        number: int,
        plan: ReadyPlan,
        memory: Mapping[str, CpuBuffer],
        twins: Mapping[str, Twin],
    ) -> None:
        self._number, self._ready = number, plan
        self._memory, self._twins = memory, twins
        self._changing: dict[str, tuple[Kernel, Values]] = {}  # kernels, from token to token
        self._steps: list[Callable[[], None]] = []
        for ready in plan.steps:
            if isinstance(ready, ReadyPart):
                self._steps.append(self._part(ready))
            else:
                self._steps.append(self._dispatch(ready))

    def run(self, offset: int, go_on: Callable[[], bool]) -> bool:
        """Whether it came to the end; memory is half-written if it did not."""
        known = {"offset": offset, "length": offset + 1}
        for kernel, values in self._changing.values():
            kernel.at({name: evaluate(formula, known) for name, formula in values.items()})
        for twin in dict.fromkeys(self._twins.values()):
            twin.advance(self._number, range(offset, offset + 1))
        for step in self._steps:
            if not go_on():
                return False
            step()
        self._fetch(self._ready.plan.fetched)
        return True

    def close(self) -> None:
        """No run is left, whoever still knows of the lane."""
        self._steps.clear()
        self._changing.clear()

    def _fetch(self, rooms: Sequence[str]) -> None:
        for room in rooms:
            self._ready.rooms[room].from_device()

    def _dispatch(self, ready: ReadyDispatch) -> Callable[[], None]:
        kernel, step = ready.kernel, ready.step
        if values := step.binding.values:
            name = kernel.entry.name
            known = self._changing.setdefault(name, (kernel, values))
            assert known[1] == values, f"{name} is asked for two values of one token"
        spans = []
        for argument in kernel.entry.arguments:
            source = step.arguments[argument.name]
            if isinstance(source, Place):
                spans.append(self._ready.rooms[source.room].part(source.start))
            elif isinstance(source, Memory):
                spans.append(self._twins[source.names[0]].span(self._number))
            else:
                assert isinstance(source, Constant)
                spans.append(ready.constants[argument.name])
        run = kernel.run(spans)
        return (lambda: self._joined(step.fetched, step.copies, run)) if step.copies else run

    def _joined(self, fetched: Sequence[str], copies: Sequence[Copied], run: Run) -> None:
        self._fetch(fetched)
        for copied in copies:
            self._bytes(copied.target, copied.nbytes)[:] = self._bytes(copied.source, copied.nbytes)
        for room in {copied.target.room for copied in copies}:
            self._ready.rooms[room].to_device()
        run()

    def _bytes(self, place: Place, nbytes: int) -> Any:
        return self._ready.rooms[place.room].array[place.start : place.start + nbytes]

    def _part(self, ready: ReadyPart) -> Callable[[], None]:
        step, binding = ready.step, ready.session.io_binding()
        for name in step.inputs:
            binding.bind_ortvalue_input(name, self._value(name))
        for name in step.outputs:
            binding.bind_ortvalue_output(name, self._value(name))
        shared = [name for name in map(_memory_name, step.inputs) if name in self._twins]

        def run() -> None:
            self._fetch(step.fetched)
            for name in shared:
                self._twins[name].pull(BOTH, self._number, ALL)
            ready.session.run_with_iobinding(binding)
            for room in step.sent:
                self._ready.rooms[room].to_device()

        return run

    def _value(self, name: str) -> Any:
        import onnxruntime

        if (memory := _memory_name(name)) in self._memory:
            return self._memory[memory].value
        return onnxruntime.OrtValue.ortvalue_from_numpy(self._ready.array(name))


def _memory_name(name: str) -> str:
    return name.removesuffix(OUT)
