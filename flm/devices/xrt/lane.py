"""A lane's token, or a chunk of its prompt, step by step: runs and bindings are made once, for as
long as its memory stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flm.devices.cpu import CpuBuffer
from flm.devices.device import OUT, Array
from flm.devices.xrt.memory import Twin
from flm.devices.xrt.plan import View
from flm.devices.xrt.ready import ReadyDispatch, ReadyPart, ReadyPlan
from flm.devices.xrt.rows import BOTH
from npu_kernels.binding import Constant, Memory
from npu_kernels.manifest import evaluate

Known = Mapping[str, int]  # what formulas of values are over
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
        self._steps: list[Callable[[Known], None]] = []
        for ready in plan.steps:
            if isinstance(ready, ReadyPart):
                self._steps.append(self._part(ready))
            else:
                self._steps.append(self._dispatch(ready))

    def run(self, rows: range, go_on: Callable[[], bool], *, logits: bool = True) -> bool:
        """The tokens of these rows, which are of one chunk. Whether it came to the end; memory is
        half-written if it did not.
        """
        plan = self._ready.plan
        start = rows.start - rows.start % plan.tokens
        first = rows.start - start
        known = {"offset": start, "length": start + plan.tokens, "first": first}
        for twin in dict.fromkeys(self._twins.values()):
            twin.advance(self._number, rows)
        for step in self._steps if logits else self._steps[: plan.for_memory]:
            if not go_on():
                return False
            step(known)
        if logits:
            self._fetch(plan.fetched)
        return True

    def close(self) -> None:
        """No run is left, whoever still knows of the lane."""
        self._steps.clear()

    def _fetch(self, rooms: Iterable[str]) -> None:
        for room in rooms:
            self._ready.rooms[room].from_device()

    def _dispatch(self, ready: ReadyDispatch) -> Callable[[Known], None]:
        kernel, step, spans = ready.kernel, ready.step, []
        for argument in kernel.entry.arguments:
            source = step.arguments[argument.name]
            if isinstance(source, View):
                spans.append(self._ready.rooms[source.room].part(source.start))
            elif isinstance(source, Memory):
                spans.append(self._twins[source.names[0]].span(self._number))
            else:
                assert isinstance(source, Constant)
                spans.append(ready.constants[argument.name])
        run, values = kernel.run(spans), step.binding.values
        copies = [
            [self._ready.bytes_at(p, each.tokens, each.nbytes) for p in (each.target, each.source)]
            for each in step.copies
        ]
        joined = {each.target.room for each in step.copies}

        def dispatch(known: Known) -> None:
            self._fetch(step.fetched)
            for target, source in copies:
                target[...] = source
            for room in joined:
                self._ready.rooms[room].to_device()
            kernel.at({name: evaluate(formula, known) for name, formula in values.items()})
            run()

        return dispatch

    def _part(self, ready: ReadyPart) -> Callable[[Known], None]:
        step, binding = ready.step, ready.session.io_binding()
        gaps: list[tuple[Array, Array]] = []  # what it takes without them, and where that is
        for name in step.inputs:
            binding.bind_ortvalue_input(name, self._bound(name, gaps))
        for name in step.outputs:
            binding.bind_ortvalue_output(name, self._bound(name, gaps))
        shared = [name for name in map(_memory_name, step.inputs) if name in self._twins]

        def run(known: Known) -> None:
            self._fetch(step.fetched)
            for target, source in gaps:
                target[...] = source
            for name in shared:
                self._twins[name].pull(BOTH, self._number, ALL)
            ready.session.run_with_iobinding(binding)
            for room in step.sent:
                self._ready.rooms[room].to_device()

        return run

    def _bound(self, name: str, gaps: list[tuple[Array, Array]]) -> Any:
        import onnxruntime

        if (memory := _memory_name(name)) in self._memory:
            return self._memory[memory].value
        array = self._ready.array(name)
        if not array.flags.c_contiguous:
            gaps.append((array.copy(), array))
            array = gaps[-1][0]
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _memory_name(name: str) -> str:
    return name.removesuffix(OUT)
