"""What a worker's body sees of the array: numbers that only the core knows, and L1 memory.

mlir-aie runs a body once, when the design is built, and emits code; here it runs for real. What
would differ (a Python `if` on such a number, a Python loop over it) is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from npu_kernels.iron_sim.faults import DesignFault, not_simulated

INDEX = "index"  # the type of loop counters: no width, mixes with constants only


class Value:
    """A number in the array, wrapped to its type's width."""

    __slots__ = ("dtype", "number")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, number: Any, dtype: np.dtype[Any] | str) -> None:
        self.number = number
        self.dtype = dtype

    def _of(self, result: Any) -> Value:
        if self.dtype == INDEX:
            return Value(int(result), INDEX)
        return Value(np.asarray(result).astype(self.dtype)[()], self.dtype)

    def _other(self, other: Any, name: str) -> Any:
        if isinstance(other, Value):
            if other.dtype != self.dtype:
                raise not_simulated(f"{name} of {self.dtype} and {other.dtype} (cast first)")
            return other.number
        if isinstance(other, int | float | np.generic) and not isinstance(other, bool):
            return other
        return NotImplemented

    def _apply(self, other: Any, name: str, swapped: bool, compares: bool) -> Any:
        number = self._other(other, name)
        if number is NotImplemented:
            return NotImplemented
        # One-element arrays wrap silently, as the core does; numpy's own scalars warn.
        kind = np.dtype(np.int64) if self.dtype == INDEX else np.dtype(self.dtype)
        left, right = np.asarray([self.number]).astype(kind), np.asarray([number]).astype(kind)
        if swapped:
            left, right = right, left
        with np.errstate(all="ignore"):
            result = OPERATIONS[name](left, right)[0]
        return Value(bool(result), np.dtype(bool)) if compares else self._of(result)

    def __neg__(self) -> Value:
        return self._of(-np.asarray([self.number])[0])

    def __truediv__(self, other: Any) -> Any:
        if self.dtype == INDEX or not np.issubdtype(np.result_type(self.number), np.floating):
            raise not_simulated("/ of whole numbers in a worker's body")
        return self._apply(other, "truediv", False, False)

    def _plain(self, *_: Any) -> Any:
        raise not_simulated(
            "Python's if, while, int() or indexing on a number that only the core knows"
        )

    __bool__ = __int__ = __index__ = __float__ = __iter__ = _plain

    def __repr__(self) -> str:
        return f"Value({self.number}, {self.dtype})"


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: getattr(operator, name)
        for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "lshift", "rshift", "xor")
    },
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": operator.and_,
    "or": operator.or_,
}


def _install(name: str) -> None:
    compares = name in ("eq", "ne", "lt", "le", "gt", "ge")

    def method(self: Value, other: Any) -> Any:
        return self._apply(other, name, False, compares)

    def swapped(self: Value, other: Any) -> Any:
        return self._apply(other, name, True, compares)

    setattr(Value, f"__{name}__", method)
    if not compares:
        setattr(Value, f"__r{name}__", swapped)


for _name in OPERATIONS:
    if _name != "truediv":
        _install(_name)


def plain(value: Any) -> Any:
    """The number itself, for the simulator's own use."""
    return value.number if isinstance(value, Value) else value


class Memory:
    """A typed piece of L1: an element of a fifo while it is held, or a buffer."""

    __slots__ = ("_array", "gone", "name")

    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self.name = name
        self._array = array
        self.gone = ""

    @property
    def array(self) -> np.ndarray[Any, Any]:
        if self.gone:
            raise DesignFault(
                "use-after-release", self.name, self.gone, "copy what must stay, release later"
            )
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self._array.dtype
        return dtype

    def _place(self, index: Any) -> tuple[int, ...]:
        indices = tuple(plain(i) for i in (index if isinstance(index, tuple) else (index,)))
        if len(indices) != len(self.shape) or not all(
            isinstance(i, int | np.integer) for i in indices
        ):
            raise not_simulated(f"{self.name}[{index!r}]: slices and partial indices")
        if any(not 0 <= i < n for i, n in zip(indices, self.shape, strict=True)):
            raise DesignFault("l1-bounds", self.name, f"index {indices} of {self.shape}")
        return indices

    def __getitem__(self, index: Any) -> Value:
        return Value(self.array[self._place(index)], self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, Value) and value.dtype != self.dtype:
            raise not_simulated(f"{self.name}[...] of {self.dtype} = {value.dtype} (cast first)")
        self.array[self._place(index)] = plain(value)

    def __iter__(self) -> Any:
        raise not_simulated(f"a Python loop over {self.name}")

    def __len__(self) -> int:
        return self.shape[0]
