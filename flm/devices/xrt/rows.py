"""Rows as kernels have them: in blocks of 16 tokens, bfloat16, keys and values together.

A token's row that a kernel appends is newer on the device until somebody asks for it. Tokens of a
block that are not pushed keep what the device has of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flm.devices.device import Array
from flm.devices.xrt.buffers import Bank, Span, per_lane
from npu_kernels.bf16 import from_bits, to_bits

BLOCK = 16  # tokens
BOTH = (0, 1)  # keys, values


class TiledRows:
    """Of a lane: [KV heads][blocks][keys, then values], room for `capacity` tokens."""

    def __init__(self, bank: Bank, key: Array, value: Array, capacity: int) -> None:
        lanes, heads, held, width = key.shape
        assert held <= capacity, (held, capacity)
        self._hosts = (key, value)  # [lanes, heads, rows, width]
        self._block_bytes, blocks = 64 * width, capacity // BLOCK
        self._spans = per_lane(bank, lanes, heads * blocks * self._block_bytes)
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
