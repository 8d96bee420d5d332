"""aie.iron: programs, the designs that iron.jit makes, and the placer that older ones name."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from npu_kernels.iron_sim.aie.device import Device
from npu_kernels.iron_sim.aie.runtime import Runtime
from npu_kernels.iron_sim.aie.types import refuse
from npu_kernels.iron_sim.aie.worker import Worker
from npu_kernels.iron_sim.build import build
from npu_kernels.iron_sim.faults import not_simulated
from npu_kernels.iron_sim.record import Record

resolved: list[Record] = []  # every program resolved since installed(), oldest first


class Program:
    def __init__(
        self, device: Device, rt: Runtime, workers: list[Worker] | None = None, **unknown: Any
    ) -> None:
        refuse("Program", **unknown)
        self._device, self._runtime, self._workers = device, rt, list(workers or [])
        self._record: Record | None = None

    def resolve_program(self, placer: Any = None) -> Record:
        """The record, where mlir-aie gives a module; printing it shows what there is."""
        if self._record is None:
            self._record = build(self._device, self._runtime, self._workers)
            resolved.append(self._record)
        return self._record

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"Program.{name}")


class SequentialPlacer:
    """Named by designs until 1.4; places are ours."""

    def __init__(self, *_: Any, **unknown: Any) -> None:
        refuse("SequentialPlacer", **unknown)


class Design:
    """A function that iron.jit holds: it builds a program once its parameters are given."""

    def __init__(self, function: Callable[..., Any], parameters: dict[str, Any]) -> None:
        self._function, self._parameters = function, parameters
        self.__name__ = function.__name__

    def specialize(self, **parameters: Any) -> Design:
        return Design(self._function, {**self._parameters, **parameters})

    def resolve(self) -> Any:
        """What the function returns; the tensors it is called with on a device are None."""
        tensors = {
            name: None
            for name, parameter in signature(self._function).parameters.items()
            if parameter.default is parameter.empty and name not in self._parameters
        }
        return self._function(**tensors, **self._parameters)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise not_simulated(f"a call of the iron.jit design {self.__name__}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"{name} of the iron.jit design {self.__name__}")


def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """@iron.jit, with or without options of the compiler."""
    if function is None:
        return lambda function: Design(function, {})
    return Design(function, {})


def record_of(program: Any) -> Record:
    """The record of a program, of a design that iron.jit holds, or of what resolve_program gave."""
    if isinstance(program, Design):
        program = program.resolve()
    if isinstance(program, Program):
        return program.resolve_program()
    if isinstance(program, Record):
        return program
    raise not_simulated(f"{program!r} as a program")


class Marker:
    """In, Out, InOut and CompileTime[...]: what a jit parameter is; annotations only."""

    def __class_getitem__(cls, item: Any) -> type[Marker]:
        return cls
