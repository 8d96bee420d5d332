"""Memory as kernels have it, beside the host's own copy: rows in blocks of 16 tokens, bfloat16;
states plain, or in slices.

Each side has what the other wrote once it was carried over: `push` brings the host's to the device,
`pull` what the device has newer to the host, only what is asked for. A token's row that a kernel
appends is newer on the device until somebody asks for it. Tokens of a block that are not pushed
keep what the device has of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from flm.core.tensor import TensorSpec
from flm.devices.cpu import CpuBuffer
from flm.devices.device import Array
from flm.devices.xrt.buffers import LINE_BYTES, Bank, Root, Span
from npu_kernels.bf16 import from_bits, to_bits
from npu_kernels.gated_delta import reference as gated_delta

BLOCK = 16  # tokens
BOTH = (0, 1)  # of rows: keys, values


class Twin(Protocol):
    """What a device has of memory tensors of all lanes. `which` of them: rows have two."""

    def span(self, lane: int) -> Span: ...

    def push(self, which: Sequence[int], lane: int, rows: range) -> None: ...

    def pull(self, which: Sequence[int], lane: int, rows: range) -> None: ...

    def advance(self, lane: int, rows: range) -> None:
        """A kernel is about to write these: from now on they are newer than the host's."""
        ...


class TiledRows:
    """Of a lane: [KV heads][blocks][keys, then values], room for `capacity` tokens."""

    def __init__(self, bank: Bank, key: Array, value: Array, capacity: int) -> None:
        lanes, heads, held, width = key.shape
        assert held <= capacity, (held, capacity)
        self._hosts = (key, value)  # [lanes, heads, rows, width]
        self._block_bytes, blocks = 64 * width, capacity // BLOCK
        self._spans = _per_lane(bank, lanes, heads * blocks * self._block_bytes)
        self._newer = [range(0)] * lanes
        # [heads, blocks, halves of a block, tokens, width / 8, 8] of the keys, of the values
        self._views = []
        for span in self._spans:
            tiles = span.array.view(np.uint16).reshape(heads, blocks, 2, 16 * width)
            keys = tiles[:, :, 0].reshape(heads, blocks, width // 8, 2, 8, 8)
            values = tiles[:, :, 1].reshape(heads, blocks, 2, width // 8, 8, 8)
            both = keys.transpose(0, 1, 3, 5, 2, 4), values.transpose(0, 1, 2, 4, 3, 5)
            assert all(np.shares_memory(each, tiles) for each in both)
            self._views.append(both)

    def span(self, lane: int) -> Span:
        return self._spans[lane]

    def push(self, which: Sequence[int], lane: int, rows: range) -> None:
        if not rows:
            return
        self._settle(which, lane, rows)
        self._sync(lane, rows, to_device=False)
        for tensor in which:
            host = self._hosts[tensor][lane, :, rows.start : rows.stop]  # [heads, rows, width]
            bits = to_bits(host.astype(np.float32))
            self._views[lane][tensor][:, *_places(rows)] = bits.reshape(*bits.shape[:2], -1, 8)
        self._sync(lane, rows, to_device=True)

    def pull(self, which: Sequence[int], lane: int, rows: range) -> None:
        newer = self._newer[lane]
        span = range(max(rows.start, newer.start), min(rows.stop, newer.stop))
        if not span:
            return
        self._sync(lane, span, to_device=False)
        for tensor in which:
            bits = self._views[lane][tensor][:, *_places(span)]
            host = self._hosts[tensor][lane, :, span.start : span.stop]
            host[...] = from_bits(bits).reshape(host.shape)

    def advance(self, lane: int, rows: range) -> None:
        newer = self._newer[lane]
        if newer and rows.start <= newer.stop and newer.start <= rows.stop:
            rows = range(min(rows.start, newer.start), max(rows.stop, newer.stop))
        elif newer:
            self.pull(BOTH, lane, newer)
        self._newer[lane] = rows

    def _settle(self, which: Sequence[int], lane: int, rows: range) -> None:
        """What the host has newer from now on is no longer the device's to give."""
        newer = self._newer[lane]
        if newer.start < rows.stop and rows.start < newer.stop:
            self.pull(BOTH, lane, range(newer.start, rows.start))
            self.pull(BOTH, lane, range(rows.stop, newer.stop))
            self.pull([tensor for tensor in BOTH if tensor not in which], lane, rows)
            self._newer[lane] = range(0)

    def _sync(self, lane: int, rows: range, *, to_device: bool) -> None:
        """The blocks that these rows are in, of each head."""
        first, stop = rows.start // BLOCK, -(-rows.stop // BLOCK)
        span, (heads, blocks) = self._spans[lane], self._views[lane][0].shape[:2]
        sync = span.to_device if to_device else span.from_device
        for head in range(heads):
            start = (head * blocks + first) * self._block_bytes
            sync(start, (stop - first) * self._block_bytes)


def _places(rows: range) -> tuple[Array, Array, Array]:
    tokens = np.arange(rows.start, rows.stop)
    return tokens // BLOCK, tokens // 8 % 2, tokens % 8


class LaidState:
    """Of a lane: the state in a layout of its own."""

    def __init__(self, bank: Bank, host: Array, layout: str, nbytes: int) -> None:
        assert nbytes == host[0].nbytes, (nbytes, host.shape)
        self._host, self._layout = host, layout
        self._spans = _per_lane(bank, len(host), nbytes)
        self._newer = [False] * len(host)

    def span(self, lane: int) -> Span:
        return self._spans[lane]

    def push(self, which: Sequence[int], lane: int, rows: range) -> None:
        state = self._host[lane]
        laid = gated_delta.pack(state) if self._layout == "slices" else state
        self._spans[lane].array[:] = np.ascontiguousarray(laid).reshape(-1).view(np.uint8)
        self._spans[lane].to_device()
        self._newer[lane] = False

    def pull(self, which: Sequence[int], lane: int, rows: range) -> None:
        if not self._newer[lane]:
            return
        self._spans[lane].from_device()
        state = self._host[lane]
        held = self._spans[lane].array.view(state.dtype)
        if self._layout == "slices":
            heads, width = state.shape[:2]
            shape = heads, width // gated_delta.COLUMNS, width, gated_delta.COLUMNS
            held = gated_delta.unpack(held.reshape(shape))
        state[...] = held.reshape(state.shape)
        self._newer[lane] = False

    def advance(self, lane: int, rows: range) -> None:
        self._newer[lane] = True


def _per_lane(bank: Bank, lanes: int, nbytes: int) -> list[Span]:
    room = -(-nbytes // LINE_BYTES) * LINE_BYTES
    root = Root(bank, lanes * room)
    spans = [root.span(lane * room, nbytes) for lane in range(lanes)]
    for span in spans:
        span.array[:] = 0
        span.to_device()
    return spans


class NpuBuffer:
    """Memory that a program of this process reads and writes: the host's array, and what the device
    has of it from the first pass on (`twin`, on the buffer of all lanes).
    """

    def __init__(
        self, spec: TensorSpec, array: Array, root: NpuBuffer | None = None, first: int = 0
    ) -> None:
        self.cpu: CpuBuffer = (
            CpuBuffer(spec, array) if root is None else root.cpu.part(first, first + len(array))
        )
        self.root, self.lanes = root or self, range(first, first + len(array))
        self._twin: tuple[Twin, int] | None = None
        self._pushed: dict[int, range] = {}  # by lane, before there was a twin
        self._parts: dict[tuple[int, int], NpuBuffer] = {}

    @property
    def spec(self) -> TensorSpec:
        return self.cpu.spec

    def array(self) -> Array:
        return self.cpu.array()

    def part(self, start: int, stop: int) -> NpuBuffer:
        if (start, stop) == (0, len(self.lanes)):
            return self
        if (start, stop) not in self._parts:
            array = self.array()[start:stop]
            self._parts[start, stop] = NpuBuffer(self.spec, array, self, start)
        return self._parts[start, stop]

    def attach(self, twin: Twin, which: int) -> None:
        """What was pushed so far is pushed to it."""
        self._twin = twin, which
        for lane, rows in self._pushed.items():
            twin.push((which,), lane, rows)
        self._pushed.clear()

    def to_device(self, rows: range | None = None) -> None:
        root, rows = self.root, self._rows(rows)
        for lane in self.lanes:
            if root._twin:
                twin, which = root._twin
                twin.push((which,), lane, rows)
            else:
                before = root._pushed.get(lane, rows)
                span = range(min(before.start, rows.start), max(before.stop, rows.stop))
                root._pushed[lane] = span

    def to_host(self, rows: range | None = None) -> None:
        if self.root._twin:
            twin, which = self.root._twin
            for lane in self.lanes:
                twin.pull((which,), lane, self._rows(rows))

    def _rows(self, rows: range | None) -> range:
        shape = self.spec.shape
        return range(shape[2] if len(shape) > 2 else 0) if rows is None else rows
