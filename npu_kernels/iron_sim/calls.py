"""How a body calls a kernel: arguments checked against the declared types, then handed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npu_kernels.iron_sim.faults import DesignFault
from npu_kernels.iron_sim.record import Kernel, Type
from npu_kernels.iron_sim.value import INDEX, Memory, Value, plain

Kernels = Mapping[str, Any]  # by symbol: a HostKernel (call(symbol, *args)) or any callable


def bound(kernel: Kernel, arguments: Sequence[Any]) -> list[Any]:
    """The arguments as a kernel takes them: arrays over L1, whole numbers, floats."""
    if len(arguments) != len(kernel.parameters):
        what = f"{len(arguments)} arguments, {len(kernel.parameters)} declared"
        raise DesignFault("kernel-arguments", kernel.symbol, what)
    return [
        _bound(kernel, number, argument, parameter)
        for number, (argument, parameter) in enumerate(
            zip(arguments, kernel.parameters, strict=True)
        )
    ]


def _bound(kernel: Kernel, number: int, argument: Any, parameter: Type | np.dtype[Any]) -> Any:
    where = f"{kernel.symbol}, argument {number}"
    if isinstance(parameter, Type):
        if not isinstance(argument, Memory):
            raise DesignFault("kernel-arguments", where, f"{argument!r} where {parameter} goes")
        if argument.shape != parameter.shape or argument.dtype != parameter.dtype:
            given = Type(argument.shape, argument.dtype)
            raise DesignFault(
                "kernel-arguments", where, f"{argument.name} is {given}, not {parameter}"
            )
        return argument.array
    if isinstance(argument, Value) and argument.dtype not in (INDEX, parameter):
        raise DesignFault(
            "kernel-arguments", where, f"a value of {argument.dtype}, not {parameter}"
        )
    scalar = plain(argument)
    if not isinstance(scalar, int | float | np.generic) or isinstance(scalar, bool):
        raise DesignFault("kernel-arguments", where, f"{argument!r} where {parameter} goes")
    if np.issubdtype(parameter, np.integer):
        limits = np.iinfo(parameter)
        if scalar != int(scalar) or not limits.min <= int(scalar) <= limits.max:
            raise DesignFault("kernel-arguments", where, f"{scalar} does not fit {parameter}")
        return int(scalar)
    return float(scalar)


def caller(kernel: Kernel, kernels: Kernels, count: Callable[[str], None]) -> Callable[..., None]:
    """What stands in for the kernel in a body's arguments."""
    if kernel.symbol not in kernels:
        raise DesignFault(
            "kernel-missing", kernel.symbol, "no code for it", f"given: {sorted(kernels)}"
        )
    code = kernels[kernel.symbol]

    def call(*arguments: Any) -> None:
        values = bound(kernel, arguments)
        count(kernel.symbol)
        if callable(code):
            code(*values)
        else:
            code.call(kernel.symbol, *values)

    return call
