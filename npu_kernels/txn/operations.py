"""The operations of a stream. `register` is the full address: column, row and offset."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Write:
    register: int
    value: int


@dataclass(frozen=True, slots=True)
class BlockWrite:
    register: int
    data: tuple[int, ...]
    tile: int = 0  # column | row << 8, as some compilers note it; the register says it too


@dataclass(frozen=True, slots=True)
class MaskWrite:
    register: int
    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class MaskPoll:
    """Waits until the masked register has the value; `busy`: until it no longer has."""

    register: int
    value: int
    mask: int
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Noop:
    pass


@dataclass(frozen=True, slots=True)
class Preempt:
    level: int


@dataclass(frozen=True, slots=True)
class LoadPdi:
    number: int
    size: int
    address: int


@dataclass(frozen=True, slots=True)
class CreateScratchpad:
    usage: int
    size: int
    address: int = 0


@dataclass(frozen=True, slots=True)
class UpdateRegister:
    """Adds a value of the scratchpad's table to a register."""

    register: int
    index: int
    function: int
    argument: int


@dataclass(frozen=True, slots=True)
class Await:
    """Waits for one task-complete token of each channel in a rectangle of tiles (TCT)."""

    column: int
    row: int
    fills: bool  # MM2S: from memory into the array; else S2MM
    channel: int
    columns: int = 1
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Patch:
    """Puts the address of a buffer argument, plus an offset, into a descriptor (DDR_PATCH)."""

    register: int  # the descriptor's second word
    argument: int
    offset: int  # bytes, and the aperture for arguments that the firmware adds none to


@dataclass(frozen=True, slots=True)
class Custom:
    """Register reads, timers and merged waits: kept, not interpreted."""

    opcode: int  # 0x82, 0x83 or 0x84
    payload: tuple[int, ...]


Operation = (
    Write
    | BlockWrite
    | MaskWrite
    | MaskPoll
    | Noop
    | Preempt
    | LoadPdi
    | CreateScratchpad
    | UpdateRegister
    | Await
    | Patch
    | Custom
)
