"""A state as kernels have it: all of a lane's, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flm.devices.device import Array
from flm.devices.xrt.buffers import Bank, Span, per_lane


class LaidState:
    def __init__(
        self, bank: Bank, host: Array, laid: Callable[[Array], Array], nbytes: int
    ) -> None:
        """`laid`: a view of a lane's, in the order that its values have on the device."""
        assert nbytes == host[0].nbytes, (nbytes, host.shape)
        self._hosts = [laid(lane) for lane in host]
        assert all(np.shares_memory(view, host) for view in self._hosts)
        self._spans = per_lane(bank, len(host), nbytes)
        self._newer = [False] * len(host)

    def span(self, lane: int) -> Span:
        return self._spans[lane]

    def push(self, which: Sequence[int], lane: int, rows: range) -> None:
        self._device(lane)[...] = self._hosts[lane]
        self._spans[lane].to_device()
        self._newer[lane] = False

    def pull(self, which: Sequence[int], lane: int, rows: range) -> None:
        if self._newer[lane]:
            self._spans[lane].from_device()
            self._hosts[lane][...] = self._device(lane)
            self._newer[lane] = False

    def advance(self, lane: int, rows: range) -> None:
        self._newer[lane] = True

    def _device(self, lane: int) -> Array:
        host = self._hosts[lane]
        return self._spans[lane].array.view(host.dtype).reshape(host.shape)
