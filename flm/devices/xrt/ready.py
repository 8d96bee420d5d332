"""A plan and all that its steps need, whichever lane: kernels, packed weights, sessions for the
parts of the graph that the CPU runs, and rooms for the tensors in between. Plans of one model share
its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from flm.devices.cpu import open_session
from flm.devices.device import IDS, LAST, LOGITS, OFFSETS, Array
from flm.devices.xrt.buffers import Bank, Span, Store
from flm.devices.xrt.kernels import Kernel, Kernels
from flm.devices.xrt.package import Packages
from flm.devices.xrt.parts import part_model
from flm.devices.xrt.phases import Phase
from flm.devices.xrt.plan import Dispatch, HostPart, View
from flm.errors import DeviceLost, UnsupportedModel
from npu_kernels.binding import Constant, Memory
from npu_kernels.lm_head.reference import best_of, lm_head

if TYPE_CHECKING:
    import onnxruntime

ALONE_BYTES_MAX = 2**20  # of weights that a part reads


@dataclass(frozen=True, slots=True, eq=False)
class ReadyDispatch:
    step: Dispatch
    kernel: Kernel
    constants: Mapping[str, Span]  # by argument


@dataclass(frozen=True, slots=True, eq=False)
class ReadyPart:
    step: HostPart
    session: onnxruntime.InferenceSession


class Weights:
    """Packed as kernels take them, each once."""

    def __init__(self) -> None:
        self._spans: dict[tuple[tuple[str, ...], str], Span] = {}

    def of(self, constant: Constant, store: Store) -> Span:
        """`store`: where it is put if it is not there yet."""
        key = constant.of, constant.layout
        if key not in self._spans:
            data = np.ascontiguousarray(constant.pack()).reshape(-1).view(np.uint8)
            span = self._spans[key] = store.take(data.nbytes)
            span.array[:] = data
            span.to_device()
        return self._spans[key]

    def clear(self) -> None:
        """Once no lane's run is left."""
        self._spans.clear()


class ReadyPlan:
    def __init__(
        self,
        xrt: ModuleType,
        device: Any,
        path: Path,
        phase: Phase,
        packages: Packages,
        weights: Weights,
        *,
        threads: int,
    ) -> None:
        self.graph, self.plan, self._weights = phase.graph, phase.plan, weights
        plan = phase.plan
        # Tokens of one lane: what a pass is given.
        self.given: Mapping[str, Array] = {
            IDS: np.zeros((1, plan.tokens), np.int64),
            OFFSETS: np.zeros(1, np.int32),
            LAST: np.zeros(1, np.int64),
        }
        self._threads = threads
        if not plan.wanted:
            raise UnsupportedModel(
                f"no kernel of the NPU takes any function of {path.parent.name}",
                fix="--device cpu runs it",
            )
        self._kernels = Kernels(xrt, device, packages(path, plan.wanted))
        self._store = Store(self._kernels.data)
        self.steps = [self._ready(step) for step in plan.steps]
        self.rooms = self._make_rooms()

    @property
    def bank(self) -> Bank:
        """Where memory is made."""
        return self._kernels.data

    def bytes_of(self, memory: Memory) -> int:
        """Of one lane, as the kernel that uses it takes it."""
        return next(
            argument.nbytes
            for ready in self.steps
            if isinstance(ready, ReadyDispatch)
            for argument in ready.kernel.entry.arguments
            if ready.step.arguments[argument.name] == memory
        )

    def array(self, name: str) -> Array:
        """A tensor as the host has it, valid once it was fetched; it may have gaps."""
        if name in self.given:
            return self.given[name]
        view, tensor = self.plan.views[name], self.graph.tensors[name]
        if not view.row:
            part = self.rooms[view.room].array[view.start : view.start + tensor.nbytes]
            return part.view(tensor.dtype).reshape(tensor.shape)
        rows = self.bytes_at(view, tensor.tokens, tensor.token_bytes)
        return rows.view(tensor.dtype).reshape(tensor.shape)

    def bytes_at(self, view: View, tokens: int, nbytes: int) -> Array:
        """[tokens, nbytes]: so many of each token's bytes there."""
        row = view.row or nbytes
        part = self.rooms[view.room].array[view.start :][: (tokens - 1) * row + nbytes]
        return np.lib.stride_tricks.as_strided(part, (tokens, nbytes), (row, 1))

    def logits(self) -> Array:
        """Of a pass, [1, 1, vocabulary], once fetched. Raises DeviceLost if the largest is not what
        the cores that made them have found.
        """
        logits = self.array(LOGITS)
        if self.plan.found:
            found = self.rooms[self.plan.found].array.view(np.float32)
            made, here = best_of(found, logits.size), lm_head(logits.reshape(-1))
            if made != here:
                raise DeviceLost(
                    f"the NPU's best logit is {made[0]:g} of token {made[1]}, and what came from "
                    f"it has {here[0]:g} of token {here[1]}",
                    fix="flm kernels selftest says which kernels compute; dmesg | grep amdxdna",
                )
        return logits

    def close(self) -> None:
        """Once no lane's run is left."""
        self.steps.clear()
        self.rooms.clear()
        del self._store
        self._kernels.close()

    def _ready(self, step: Dispatch | HostPart) -> ReadyDispatch | ReadyPart:
        if isinstance(step, HostPart):
            model = part_model(self.graph, step).SerializeToString()
            # A session has threads of its own, and there are many: little is computed by one.
            heavy = self._weight_bytes(step) > ALONE_BYTES_MAX
            threads = self._threads if heavy else 1
            return ReadyPart(step, open_session(model, self.graph.folder, threads=threads))
        packed = {
            name: self._weights.of(source, self._store)
            for name, source in step.arguments.items()
            if isinstance(source, Constant)
        }
        return ReadyDispatch(step, self._kernels.kernel(step.wanted), packed)

    def _weight_bytes(self, part: HostPart) -> int:
        names = {name for node in part.nodes for name in node.input}
        return sum(self.graph.constants[n].nbytes for n in names if n in self.graph.constants)

    def _make_rooms(self) -> dict[str, Span]:
        """Each for all that a step moves there, which may be more than the tensor has."""
        sizes: dict[str, int] = {}

        def grow(view: View, nbytes: int) -> None:
            sizes[view.room] = max(sizes.get(view.room, 0), view.start + nbytes)

        for ready in self.steps:
            if isinstance(ready, ReadyPart):
                for name in ready.step.outputs:
                    if name in self.plan.views:
                        grow(self.plan.views[name], self.graph.tensors[name].nbytes)
            else:
                for argument in ready.kernel.entry.arguments:
                    source = ready.step.arguments[argument.name]
                    if isinstance(source, View):
                        grow(source, argument.nbytes)
        return {room: self._store.take(nbytes) for room, nbytes in sizes.items()}
