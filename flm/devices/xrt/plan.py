"""What a token, or a chunk of a prompt, takes of one lane: dispatches of kernels, and between them
parts of the graph for the CPU, in the graph's order.

A tensor that a dispatch or another part needs has a room; what only cuts or picks (Split along the
last axis, Gather of the one token) is a view of another's room and takes nothing. What was cut of
many tokens has gaps between one and the next; a design that cannot step over them is given a copy.
A plan knows of no buffers: it names tensors, and says what must be synced when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flm.devices.device import LAST, LOGITS, OUT
from flm.devices.xrt.graph import OURS, Graph
from flm.devices.xrt.package import Wanted
from npu_kernels.binding import Binding, Constant, Joined, Memory, Operand, Rows, bind

if TYPE_CHECKING:
    import onnx


FOUND = "found"  # where the last product leaves what its cores have found to be the best logit
CHUNK = 32  # tokens of a prompt that a plan takes at once: those from a multiple of it on


@dataclass(frozen=True, slots=True)
class View:
    """Bytes of a room, from one on. `row`: from a token's to the next's, where there are gaps."""

    room: str
    start: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """Bytes of each token that a host brings elsewhere, for a dispatch that takes them there."""

    source: View
    target: View
    tokens: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    node: str
    function: str
    binding: Binding
    arguments: Mapping[str, View | Constant | Memory]  # by names in the graph
    written: frozenset[str] = frozenset()  # rooms
    copies: tuple[Copied, ...] = ()
    fetched: tuple[str, ...] = ()  # rooms synced from the device, for the copies

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.binding.folder, self.binding.design, self.binding.parameters)


@dataclass(frozen=True, slots=True, eq=False)
class HostPart:
    """Nodes that a CPU runs, the same memory below."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]  # tensors of other parts, of the graph, and memory
    outputs: tuple[str, ...]
    fetched: tuple[str, ...] = ()  # rooms synced from the device before it
    sent: tuple[str, ...] = ()  # and to the device after it


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    steps: tuple[Dispatch | HostPart, ...]
    views: Mapping[str, View]  # of every tensor that has room, or is part of one that has
    fetched: tuple[str, ...]  # at the end: the logits, if a dispatch leaves them, and the best
    tokens: int = 1

    @property
    def for_memory(self) -> int:
        """Of the steps the first so many are all that writes memory; the rest is for logits."""
        return 1 + max(
            number
            for number, step in enumerate(self.steps)
            if isinstance(step, Dispatch)
            and any(isinstance(each, Memory) for each in step.arguments.values())
        )

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Dispatch))

    @property
    def found(self) -> str | None:
        """The room of that."""
        rooms = (step.arguments.get(FOUND) for step in self.dispatches)
        return next((view.room for view in rooms if isinstance(view, View)), None)

    @property
    def wanted(self) -> list[Wanted]:
        """The kernels, each once."""
        return list({each.wanted.name: each.wanted for each in self.dispatches}.values())

    @property
    def memory(self) -> frozenset[Memory]:
        """What stays in kernels' layouts."""
        return frozenset(
            source
            for dispatch in self.dispatches
            for source in dispatch.arguments.values()
            if isinstance(source, Memory)
        )

    @property
    def rows(self) -> frozenset[Memory]:
        return frozenset(memory for memory in self.memory if isinstance(memory, Rows))


def plan_for_prompts(graph: Graph) -> Plan | None:
    """None where a CPU would have to carry some of the memory on: of tokens that are not a chunk's
    it must not know.
    """
    plan = plan_of(graph)
    carried = {name for memory in plan.memory for name in memory.names}
    outputs = {value.name.removesuffix(OUT) for value in graph.model.graph.output}
    return plan if outputs - {LOGITS} <= carried and plan.memory else None


def plan_of(graph: Graph) -> Plan:
    writer = _Writer(graph)
    for proto in writer.wanted():
        writer.add(proto)
    return writer.finish()


@dataclass
class _Writer:
    graph: Graph
    steps: list[Dispatch | HostPart] = field(default_factory=list)
    run: list[onnx.NodeProto] = field(default_factory=list)  # for the CPU, not a part yet
    views: dict[str, View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bindings: dict[str, tuple[Binding, ...]] = {}
        self.rows: dict[str, int] = {}  # of tensors with gaps
        self.on_npu: set[str] = set()  # what dispatches write, and views of it
        for proto in self.graph.model.graph.node:
            if proto.domain == OURS and (bound := bind(self.graph.node(proto, self.rows))):
                self.bindings[proto.name] = bound
                names = self.graph.names(proto)
                ends = [(names.get(v.name), v.row) for each in bound for v in _operands(each)]
                self.rows |= {str(n): row for n, row in ends if row and n in proto.output}
                self.on_npu |= set(proto.output)
            elif self.graph.tokens > 1 and _cuts(proto) and proto.input[0] in self.on_npu:
                whole = self.graph.tensors[proto.input[0]]
                if whole.tokens > 1:
                    row = self.rows.get(proto.input[0]) or whole.token_bytes
                    self.rows |= dict.fromkeys(proto.output, row)
                self.on_npu |= set(proto.output)

    def wanted(self) -> list[onnx.NodeProto]:
        """The nodes that lead to an output: what a kernel does not take need not be computed."""
        nodes = self.graph.model.graph.node
        needed = {value.name for value in self.graph.model.graph.output}
        kept: list[onnx.NodeProto] = []
        for proto in reversed(nodes):
            if needed.isdisjoint(proto.output):
                continue
            kept.append(proto)
            needed.update(self._read(proto))
        return kept[::-1]

    def _read(self, proto: onnx.NodeProto) -> Iterable[str]:
        if proto.name not in self.bindings:
            return list(proto.input)
        names = self.graph.names(proto)
        return [
            names[operand.name]
            for binding in self.bindings[proto.name]
            for operand in _operands(binding)
            if operand.name in names
        ]

    def add(self, proto: onnx.NodeProto) -> None:
        if proto.name in self.bindings:
            self._close()
            for binding in self.bindings[proto.name]:
                self._dispatch(proto, binding)
        elif views := self._within(proto):
            self.views |= views
        else:
            self.run.append(proto)

    def _within(self, proto: onnx.NodeProto) -> dict[str, View]:
        """Of a token what is cut along the last axis lies in one piece each."""
        source = self.views.get(proto.input[0]) if proto.input else None
        if source is None or (self.graph.tokens > 1 and proto.input[0] not in self.on_npu):
            return {}
        if self.graph.tokens == 1 and _picks(proto):
            return {proto.output[0]: source}
        if not _cuts(proto):
            return {}
        views, start = {}, source.start
        for name in proto.output:
            views[name] = replace(source, start=start, row=self.rows.get(name, 0))
            start += self.graph.tensors[name].token_bytes
        return views

    def _dispatch(self, proto: onnx.NodeProto, binding: Binding) -> None:
        names = self.graph.names(proto)
        copies: list[Copied] = []
        written: set[str] = set()
        arguments: dict[str, View | Constant | Memory] = {}

        def view(operand: Operand, row: int = 0) -> View:
            name = names.get(operand.name, f"{proto.name}/{operand.name}")
            found = self.views.setdefault(name, View(name, row=row))
            return replace(found, start=found.start + operand.start)

        def copied(operand: Operand, room: str, start: int) -> Copied:
            tensor = self.graph.tensors[names[operand.name]]
            target = View(room, start, operand.row)
            return Copied(view(operand), target, tensor.tokens, tensor.token_bytes)

        for name, source in binding.arguments.items():
            room = f"{proto.name}/{binding.design}/{name}"
            if isinstance(source, Operand):
                arguments[name] = where = view(source, source.row)
                if names.get(source.name) not in proto.input:
                    written.add(where.room)
                elif where.row != source.row:
                    arguments[name] = self.views[room] = View(room)
                    copies.append(copied(source, room, 0))
            elif isinstance(source, Joined):
                arguments[name] = self.views[room] = View(room)
                copies += [copied(each, room, start) for start, each in source.parts]
            elif isinstance(source, Memory):
                arguments[name] = replace(source, names=tuple(names[n] for n in source.names))
            else:
                of = tuple(names[n] for n in source.of) or (proto.name,)
                arguments[name] = replace(source, of=of)
        self.steps.append(
            Dispatch(
                proto.name, proto.op_type, binding, arguments, frozenset(written), tuple(copies)
            )
        )

    def _close(self) -> None:
        """What was gathered for the CPU becomes a part; what it takes and gives is told later."""
        if self.run:
            self.steps.append(HostPart(tuple(self.run), (), ()))
            made = [name for proto in self.run for name in proto.output if name]
            self.views |= {name: View(name) for name in made if not name.endswith(OUT)}
        self.run = []

    def finish(self) -> Plan:
        self._close()
        parts = [step for step in self.steps if isinstance(step, HostPart)]
        ends = {value.name for value in self.graph.model.graph.output}
        for step in self.steps:
            if isinstance(step, Dispatch):
                sources = [each for each in step.arguments.values() if isinstance(each, View)]
                ends.update(p.room for p in [*sources, *(copy.source for copy in step.copies)])
        for part in parts:
            ends.update(self._outside(part))
        ends.update(view.room for name, view in self.views.items() if name in ends)
        steps = [
            self._ended(each, ends) if isinstance(each, HostPart) else each for each in self.steps
        ]
        return _synced(steps, self.views, self.graph.tokens)

    def _outside(self, part: HostPart) -> list[str]:
        """What a part reads and does not make."""
        made = {name for proto in part.nodes for name in proto.output}
        read = dict.fromkeys(name for proto in part.nodes for name in proto.input if name)
        return [name for name in read if name not in made and name not in self.graph.constants]

    def _ended(self, part: HostPart, ends: set[str]) -> HostPart:
        made = [name for proto in part.nodes for name in proto.output if name]
        outputs = tuple(name for name in made if name in ends)
        return replace(part, inputs=tuple(self._outside(part)), outputs=outputs)


def _cuts(proto: onnx.NodeProto) -> bool:
    return proto.op_type == "Split" and any(a.name == "axis" and a.i == -1 for a in proto.attribute)


def _picks(proto: onnx.NodeProto) -> bool:
    """The one token whose logits are wanted."""
    by_token = any(a.name == "axis" and a.i == 1 for a in proto.attribute)
    return proto.op_type == "Gather" and proto.input[1] == LAST and by_token


def _operands(binding: Binding) -> Iterable[Operand]:
    """What a binding reads or writes by name, memory among it."""
    for source in binding.arguments.values():
        if isinstance(source, Operand):
            yield source
        elif isinstance(source, Joined):
            yield from (operand for _, operand in source.parts)
        elif isinstance(source, Memory):
            yield from (Operand(name) for name in source.names)


def _synced(steps: Iterable[Dispatch | HostPart], views: Mapping[str, View], tokens: int) -> Plan:
    """Each room is synced once, where the other side first needs it."""
    steps = list(steps)
    taken = {
        source.room
        for step in steps
        if isinstance(step, Dispatch)
        for source in step.arguments.values()
        if isinstance(source, View)
    }
    away: set[str] = set()  # rooms that only the device has as they are now
    synced: list[Dispatch | HostPart] = []

    def fetched(names: Iterable[str]) -> tuple[str, ...]:
        rooms = dict.fromkeys(views[name].room for name in names if name in views)
        found = tuple(room for room in rooms if room in away)
        away.difference_update(found)
        return found

    for step in steps:
        if isinstance(step, HostPart):
            sent = tuple(name for name in step.outputs if name in taken)
            synced.append(replace(step, fetched=fetched(step.inputs), sent=sent))
        else:
            synced.append(replace(step, fetched=fetched(c.source.room for c in step.copies)))
            away |= step.written
    plan = Plan(tuple(synced), views, (), tokens)
    return replace(plan, fetched=fetched([LOGITS, *([plan.found] if plan.found else [])]))
