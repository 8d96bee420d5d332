"""What engine and worker say to each other, a datagram each: JSON, checked field by field.

A command is answered by one message, but Free, which is not. Memory itself is in the arena.
"""

import json
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from flm.core.tensor import TensorSpec

MESSAGE_BYTES_MAX = 128 * 2**10  # below what a socket takes in one go


class BadMessage(Exception):
    """Not one of ours: whoever sent it is no worker to go on with."""


@dataclass(frozen=True, slots=True)
class Part:
    """Lanes [start, stop) of a buffer."""

    buffer: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Open:
    """Answered by Done, as all that say nothing else."""

    device: str
    threads: int  # for what no kernel computes
    capacity: int  # rows that a lane may ever hold


@dataclass(frozen=True, slots=True)
class Allocate:
    """The host's copy is at `offset` in the arena."""

    buffer: int
    spec: TensorSpec
    offset: int


@dataclass(frozen=True, slots=True)
class Free:
    buffer: int


@dataclass(frozen=True, slots=True)
class Load:
    """Answered by Loaded."""

    program: int
    graph: str


@dataclass(frozen=True, slots=True)
class Sync:
    part: Part
    to_device: bool
    rows: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Run:
    """`number` is this pass's alone: a cancel names it. `places`: buffer, start and stop of each of
    `names`, flat, for there are many and this is said for each token.
    """

    program: int
    number: int
    names: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def buffers(self) -> dict[str, Part]:
        columns = (self.places[first::3] for first in range(3))
        return {name: Part(*place) for name, *place in zip(self.names, *columns, strict=True)}


@dataclass(frozen=True, slots=True)
class Close:
    pass


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Loaded:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    grid: int


@dataclass(frozen=True, slots=True)
class Failed:
    """`kind` is the name of one of flm.errors."""

    kind: str
    message: str
    fix: str


Command = Open | Allocate | Free | Load | Sync | Run | Close
Answer = Done | Loaded | Failed
_PLAIN = (int, str, bool)
_KINDS: dict[str, type[Command | Answer]] = {
    kind.__name__: kind for kind in (*get_args(Command), *get_args(Answer))
}


def encode(message: Command | Answer) -> bytes:
    data = json.dumps({type(message).__name__: message}, default=_fields).encode()
    assert len(data) <= MESSAGE_BYTES_MAX, f"{type(message).__name__} of {len(data)} bytes"
    return data


def decode(data: bytes) -> Command | Answer:
    """Raises BadMessage."""
    try:
        ((name, value),) = json.loads(data).items()
        message = _checked(_KINDS[name], value)
    except (ValueError, AttributeError, KeyError, RecursionError) as error:
        raise BadMessage(f"{data[:200]!r}: {error!r}") from error
    assert isinstance(message, Command | Answer)
    return message


def _fields(message: Any) -> dict[str, Any]:
    kind: Any = type(message)
    return {name: getattr(message, name) for name in _hints(kind)}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _checked(kind: Any, value: Any) -> Any:
    """`value` as JSON has it, as a `kind`. Raises ValueError."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None and NoneType in inner else _checked(inner[0], value)
    if origin is tuple and isinstance(value, list):
        if inner[-1] is Ellipsis:
            if inner[0] in _PLAIN and {type(each) for each in value} <= {inner[0]}:
                return tuple(value)  # the long ones
            inner = inner[:1] * len(value)
        return tuple(_checked(*each) for each in zip(inner, value, strict=True))
    if kind in _PLAIN and type(value) is kind:
        return value
    if is_dataclass(kind) and isinstance(value, dict):
        return _message(kind, value)
    raise ValueError(f"{value!r} is no {kind}")


def _message(kind: Any, value: dict[str, Any]) -> Any:
    hints = _hints(kind)
    if hints.keys() != value.keys():
        raise ValueError(f"{value!r} is no {kind}")
    return kind(**{name: _checked(hints[name], each) for name, each in value.items()})
