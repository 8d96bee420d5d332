"""Small streams to test with, made of the operations that mlir-aie emits for one transfer."""

from npu_kernels.txn import NPU2, Await, BlockWrite, MaskWrite, Operation, Patch, Write
from npu_kernels.txn.descriptors import Descriptor
from npu_kernels.txn.geometry import Place
from npu_kernels.txn.shim import CONTROL, QUEUE, TOKEN_BIT

DEVICE = NPU2
OFFSETS = {channel: offset for offset, channel in QUEUE.items()}
CONTROLS = {channel: offset for offset, channel in CONTROL.items()}


def descriptor(number: int, column: int = 0) -> int:
    return Place(column, 0, 0x1D000 + 0x20 * number).address


def described(
    number: int, what: Descriptor, argument: int, offset: int = 0, column: int = 0
) -> list[Operation]:
    register = descriptor(number, column)
    return [BlockWrite(register, what.words()), Patch(register + 4, argument, offset)]


def started(
    number: int,
    *,
    fills: bool,
    channel: int = 0,
    column: int = 0,
    repeats: int = 1,
    token: bool = True,
) -> list[Operation]:
    word = (TOKEN_BIT if token else 0) | repeats - 1 << 16 | number
    control = Place(column, 0, CONTROLS[fills, channel]).address
    queue = Place(column, 0, OFFSETS[fills, channel]).address
    return [MaskWrite(control, 0xF00, 0x1F00), Write(queue, word)]


def fill(
    number: int, argument: int, words: int, offset: int = 0, token: bool = True
) -> list[Operation]:
    return described(number, Descriptor(words), argument, offset) + started(
        number, fills=True, token=token
    )


def drain(
    number: int, argument: int, words: int, offset: int = 0, token: bool = True
) -> list[Operation]:
    return described(number, Descriptor(words), argument, offset) + started(
        number, fills=False, token=token
    )


FILLED, DRAINED = Await(0, 0, True, 0), Await(0, 0, False, 0)


def copy(words: int = 64) -> list[Operation]:
    """Argument 0 in through MM2S0, out to argument 1 through S2MM0."""
    return [
        *drain(0, 1, words),
        *fill(1, 0, words, token=False),
        DRAINED,
    ]
