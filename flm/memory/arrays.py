"""Memory for snapshots, in blocks of many arrays; what is given up for one is what it is made of.

New memory is cleared by the kernel when it is first touched, which takes nearly as long as a copy
into it. A full cache gives up as much as it saves: within `reuse()` that is not returned but
written again.

Invariants:
  * A block is used again only once no array looks at it, for the last of them hands it over.
  * What is handed over and not used goes back before anything new is taken: at no instant is more
    held than what arrays take, or took when `reuse()` began.
"""

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import finalize

import numpy as np

from flm.devices.device import Array
from flm.memory.layout import MemoryLayout, MemoryTensor

BLOCK_BYTES = 64 * 2**20
SMALL_BYTES_MAX = 2**20  # what takes so little is no mapping of its own


class _Spare(threading.local):
    blocks: list[mmap.mmap] | None = None  # None: nothing is used again


_spare = _Spare()


@contextmanager
def reuse() -> Iterator[None]:
    """What this thread lets go of within, the first arrays that it makes then take. Not nested."""
    _spare.blocks = []
    try:
        yield
    finally:
        _spare.blocks = None


def empty(layout: MemoryLayout, count: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Rows [heads, count, width] and state, of each tensor; they lie apart, since rows may outlive
    the state. Without any rows there is the state alone.
    """
    rows = layout.rows if count else ()
    arrays = _arrays(_together(rows, count) + _together(layout.state, count), count)
    state = {tensor.name: arrays.pop(tensor.name) for tensor in layout.state}
    return arrays, state


def empty_rows(layout: MemoryLayout, count: int) -> dict[str, Array]:
    return _arrays(_together(layout.rows, count), count)


def _together(tensors: tuple[MemoryTensor, ...], count: int) -> list[list[MemoryTensor]]:
    """They share a few blocks, because a large one comes in large pages: that fills them several
    times as fast as an array each. What is kept is given up whole, so a block costs no room.
    """
    groups: list[list[MemoryTensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.held_bytes(count)
        if size > room:
            groups.append([])
            room = BLOCK_BYTES
        groups[-1].append(tensor)
        room -= size
    return groups


def _arrays(groups: list[list[MemoryTensor]], count: int) -> dict[str, Array]:
    blocks = _blocks([sum(tensor.held_bytes(count) for tensor in group) for group in groups])
    arrays: dict[str, Array] = {}
    for block, group in zip(blocks, groups, strict=True):
        end = 0
        for tensor in group:
            start, end = end, end + tensor.held_bytes(count)
            arrays[tensor.name] = block[start:end].view(tensor.dtype).reshape(tensor.held(count))
    return arrays


def _blocks(sizes: list[int]) -> list[Array]:
    spare, _spare.blocks = _spare.blocks or [], None
    used = [_best(spare, size) for size in sizes]
    spare.clear()
    try:
        return [_block(size, memory) for size, memory in zip(sizes, used, strict=True)]
    except OSError as error:
        raise MemoryError(f"no memory for {sum(sizes):,} bytes of a snapshot") from error


def _best(spare: list[mmap.mmap], size: int) -> mmap.mmap | None:
    """What has to be cut least, or else extended least."""
    if size <= SMALL_BYTES_MAX or not spare:
        return None
    best = min(spare, key=lambda memory: (len(memory) < size, abs(len(memory) - size)))
    spare.remove(best)
    return best


def _block(size: int, memory: mmap.mmap | None) -> Array:
    if size <= SMALL_BYTES_MAX:
        return np.empty(size, np.uint8)
    if memory:
        memory.resize(size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel may have no large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(memory, np.uint8)  # all views of it, and theirs, keep this one alive
    finalize(block, _hand_over, memory).atexit = False
    return block


def _hand_over(memory: mmap.mmap) -> None:
    if _spare.blocks is not None:
        _spare.blocks.append(memory)
