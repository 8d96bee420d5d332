"""What an NPU's buffers have to hold for a model, counted from its plans: nothing is run."""

from pathlib import Path

from flm.devices.xrt.build import design_of
from flm.devices.xrt.phases import phases_of
from flm.devices.xrt.plan import Dispatch, View
from npu_kernels.binding import Constant, Memory


def held_bytes(graph: Path, *, capacity: int, lanes: int) -> int:
    """Packed weights and memory once for all plans, the tensors between kernels for each."""
    once: dict[object, int] = {}
    rooms: dict[tuple[str, str], int] = {}
    for phase in filter(None, phases_of(graph, capacity)):
        for step in phase.plan.steps:
            if not isinstance(step, Dispatch):
                continue
            design = design_of(step.wanted)
            for name, source in step.arguments.items():
                nbytes = design.bytes_of(name, step.wanted.parameters)
                if isinstance(source, View):
                    room = phase.name, source.room
                    rooms[room] = max(rooms.get(room, 0), source.start + nbytes)
                elif isinstance(source, Constant):
                    once[source.of, source.layout] = nbytes
                else:
                    assert isinstance(source, Memory)
                    once[source] = nbytes * lanes
    return sum(once.values()) + sum(rooms.values())
