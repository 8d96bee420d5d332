"""What one token of one lane takes: dispatches of kernels, and between them parts of the graph for
the CPU, in the graph's order.

A value that a dispatch or another part needs has a room; what only cuts or picks (Split along the
last axis, Gather of the one token) is a view of another's room and takes nothing. A plan knows of
no buffers: it names values, and says what must be synced when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flm.devices.device import LAST, LOGITS, OUT
from flm.devices.xrt.graph import OURS, Graph
from flm.devices.xrt.package import Wanted
from npu_kernels.binding import Binding, Constant, Joined, Memory, Value, bind

if TYPE_CHECKING:
    import onnx


ROWS = "blocks16"  # their layout; all others are states
FOUND = "found"  # where the last product leaves what its cores have found to be the best logit


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a room, from one on."""

    room: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """Bytes that a host brings to a place: some that a dispatch takes side by side."""

    source: Place
    target: Place
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    node: str
    function: str
    binding: Binding
    arguments: Mapping[str, Place | Constant | Memory]  # memory by its names in the graph
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
    inputs: tuple[str, ...]  # values of other parts, of the graph, and memory
    outputs: tuple[str, ...]
    fetched: tuple[str, ...] = ()  # rooms synced from the device before it
    sent: tuple[str, ...] = ()  # and to the device after it


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    steps: tuple[Dispatch | HostPart, ...]
    places: Mapping[str, Place]  # of every value that has room, or is a view
    fetched: tuple[str, ...]  # at the end: the logits, if a dispatch leaves them, and the best

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Dispatch))

    @property
    def found(self) -> str | None:
        """The room of that."""
        rooms = (step.arguments.get(FOUND) for step in self.dispatches)
        return next((place.room for place in rooms if isinstance(place, Place)), None)

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
        return frozenset(memory for memory in self.memory if memory.layout == ROWS)


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
    places: dict[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bindings = {
            proto.name: bound
            for proto in self.graph.model.graph.node
            if proto.domain == OURS and (bound := bind(self.graph.node(proto)))
        }

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
            names[value.name]
            for binding in self.bindings[proto.name]
            for value in _values(binding)
            if value.name in names
        ]

    def add(self, proto: onnx.NodeProto) -> None:
        if proto.name in self.bindings:
            self._close()
            for binding in self.bindings[proto.name]:
                self._dispatch(proto, binding)
        elif views := self._views(proto):
            self.places |= views
        else:
            self.run.append(proto)

    def _views(self, proto: onnx.NodeProto) -> dict[str, Place]:
        """Of one token what is cut along the last axis lies in one piece each."""
        source = self.places.get(proto.input[0]) if proto.input else None
        if source is None:
            return {}
        attributes = {attribute.name: attribute.i for attribute in proto.attribute}
        if proto.op_type == "Gather" and proto.input[1] == LAST and attributes.get("axis") == 1:
            return {proto.output[0]: source}
        if proto.op_type != "Split" or attributes.get("axis") != -1:
            return {}
        views, start = {}, source.start
        for name in proto.output:
            views[name] = replace(source, start=start)
            start += self.graph.tensors[name].nbytes
        return views

    def _dispatch(self, proto: onnx.NodeProto, binding: Binding) -> None:
        names = self.graph.names(proto)
        copies: list[Copied] = []
        written: set[str] = set()
        arguments: dict[str, Place | Constant | Memory] = {}

        def place(value: Value) -> Place:
            name = names.get(value.name, f"{proto.name}/{value.name}")
            found = self.places.setdefault(name, Place(name))
            return replace(found, start=found.start + value.start)

        for name, source in binding.arguments.items():
            if isinstance(source, Value):
                arguments[name] = where = place(source)
                if names.get(source.name) not in proto.input:
                    written.add(where.room)
            elif isinstance(source, Joined):
                room = f"{proto.name}/{binding.design}/{name}"
                arguments[name] = self.places[room] = Place(room)
                copies += [
                    Copied(
                        place(value),
                        Place(room, start),
                        self.graph.tensors[names[value.name]].nbytes,
                    )
                    for start, value in source.parts
                ]
            elif isinstance(source, Memory):
                arguments[name] = replace(source, names=tuple(names[n] for n in source.names))
            else:
                arguments[name] = source
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
            self.places |= {name: Place(name) for name in made if not name.endswith(OUT)}
        self.run = []

    def finish(self) -> Plan:
        self._close()
        parts = [step for step in self.steps if isinstance(step, HostPart)]
        ends = {value.name for value in self.graph.model.graph.output}
        for step in self.steps:
            if isinstance(step, Dispatch):
                sources = [each for each in step.arguments.values() if isinstance(each, Place)]
                ends.update(p.room for p in [*sources, *(copy.source for copy in step.copies)])
        for part in parts:
            ends.update(self._outside(part))
        ends.update(place.room for name, place in self.places.items() if name in ends)
        steps = [
            self._ended(each, ends) if isinstance(each, HostPart) else each for each in self.steps
        ]
        return _synced(steps, self.places)

    def _outside(self, part: HostPart) -> list[str]:
        """What a part reads and does not make."""
        made = {name for proto in part.nodes for name in proto.output}
        read = dict.fromkeys(name for proto in part.nodes for name in proto.input if name)
        return [name for name in read if name not in made and name not in self.graph.constants]

    def _ended(self, part: HostPart, ends: set[str]) -> HostPart:
        made = [name for proto in part.nodes for name in proto.output if name]
        outputs = tuple(name for name in made if name in ends)
        return replace(part, inputs=tuple(self._outside(part)), outputs=outputs)


def _values(binding: Binding) -> Iterable[Value]:
    """What a binding reads or writes by name, memory among it."""
    for source in binding.arguments.values():
        if isinstance(source, Value):
            yield source
        elif isinstance(source, Joined):
            yield from (value for _, value in source.parts)
        elif isinstance(source, Memory):
            yield from (Value(name) for name in source.names)


def _synced(steps: Iterable[Dispatch | HostPart], places: Mapping[str, Place]) -> Plan:
    """Each room is synced once, where the other side first needs it."""
    steps = list(steps)
    taken = {
        source.room
        for step in steps
        if isinstance(step, Dispatch)
        for source in step.arguments.values()
        if isinstance(source, Place)
    }
    away: set[str] = set()  # rooms that only the device has as they are now
    synced: list[Dispatch | HostPart] = []

    def fetched(names: Iterable[str]) -> tuple[str, ...]:
        rooms = dict.fromkeys(places[name].room for name in names if name in places)
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
    plan = Plan(tuple(synced), places, ())
    return replace(plan, fetched=fetched([LOGITS, *([plan.found] if plan.found else [])]))
