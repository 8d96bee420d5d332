"""What mlir-aie would emit for a worker's body, found as it finds it: by running the body once.

Loops of the array (range_) are entered once, so a Python loop shows as what it becomes: more code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npu_kernels.iron_sim.calls import bound
from npu_kernels.iron_sim.faults import DesignFault, not_simulated
from npu_kernels.iron_sim.loops import counting
from npu_kernels.iron_sim.record import Barrier, Buffer, Kernel, Port, Sites, Type
from npu_kernels.iron_sim.value import Memory


class _Noted:
    def __init__(self) -> None:
        self.calls: list[Kernel] = []
        self.locks = 0
        self.barriers: list[tuple[str, str]] = []
        self.held: dict[Port, int] = {}


class _PortSites:
    def __init__(self, noted: _Noted, port: Port, type_: Type, depth: int) -> None:
        self._noted, self._port, self._type, self.depth = noted, port, type_, depth
        self.name, self.shape, self.dtype = port.fifo, type_.shape, type_.dtype
        self._element = Memory(port.fifo, np.zeros(type_.shape, type_.dtype))

    def acquire(self, num_elem: int) -> Any:
        if not isinstance(num_elem, int) or not 1 <= num_elem <= self.depth:
            raise ValueError(f"{self.name}: acquire({num_elem!r}) of a fifo of depth {self.depth}")
        self._noted.locks += 1
        self._noted.held[self._port] = max(self._noted.held.get(self._port, 0), num_elem)
        return self._element if num_elem == 1 else [self._element] * num_elem

    def release(self, num_elem: int) -> None:
        self._noted.locks += 1

    def __getattr__(self, name: str) -> Any:
        raise not_simulated(f"{name} of a fifo's handle in a worker's body")


class _BarrierSites:
    def __init__(self, noted: _Noted, barrier: Barrier) -> None:
        self._noted, self._name = noted, barrier.name

    def wait_for_value(self, value: int) -> None:
        self._noted.barriers.append((self._name, "wait"))

    def release_with_value(self, value: int) -> None:
        self._noted.barriers.append((self._name, "release"))


def sites_of(
    name: str,
    body: Callable[..., object],
    arguments: tuple[Any, ...],
    end_of: Callable[[Port], tuple[Type, int]],
) -> Sites:
    noted = _Noted()

    def given(argument: Any) -> Any:
        if isinstance(argument, Port):
            return _PortSites(noted, argument, *end_of(argument))
        if isinstance(argument, Buffer):
            return Memory(argument.name, np.zeros(argument.type.shape, argument.type.dtype))
        if isinstance(argument, Kernel):
            return _call_site(noted, argument)
        if isinstance(argument, Barrier):
            return _BarrierSites(noted, argument)
        if isinstance(argument, list | tuple):
            return type(argument)(given(item) for item in argument)
        return argument

    with counting() as count:
        try:
            body(*map(given, arguments))
        except (DesignFault, NotImplementedError, ValueError) as error:
            error.add_note(f"in the body of worker {name}")
            raise
    return Sites(
        tuple(noted.calls),
        noted.locks,
        count.loops,
        tuple(noted.barriers),
        tuple(noted.held.items()),
        bool(noted.held or noted.barriers),
    )


def _call_site(noted: _Noted, kernel: Kernel) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        bound(kernel, arguments)
        noted.calls.append(kernel)

    return call
