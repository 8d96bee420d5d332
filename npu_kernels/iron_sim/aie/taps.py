"""aie.helpers.taplib: how tensors are visited: offset, sizes, strides in elements, last fastest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from npu_kernels.iron_sim.faults import not_simulated

Array = np.ndarray[Any, np.dtype[np.int32]]


def contiguous(sizes: Sequence[int]) -> list[int]:
    return [prod(sizes[n + 1 :]) for n in range(len(sizes))]


class TensorAccessPattern:
    def __init__(
        self,
        tensor_dims: Sequence[int],
        offset: int = 0,
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise not_simulated(f"TensorAccessPattern({name}=...)")
        if not tensor_dims or min(tensor_dims) < 1:
            raise ValueError(f"tensor dimensions {tensor_dims}")
        dims = [int(n) for n in tensor_dims]
        self.tensor_dims = [1, *dims] if len(dims) == 1 else dims
        self.offset = int(offset)
        self.sizes = [int(n) for n in (sizes if sizes is not None else self.tensor_dims)]
        given = strides if strides is not None else contiguous(self.sizes)
        self.strides = [int(n) for n in given]
        if len(self.sizes) != len(self.strides) or not self.sizes:
            raise ValueError(f"sizes {self.sizes}, strides {self.strides}: as many of each")
        if min(self.sizes) < 1 or min(self.strides) < 0 or self.offset < 0:
            raise ValueError(f"sizes {self.sizes}, strides {self.strides}, offset {self.offset}")
        # Leading dimensions of size 1 go nowhere.
        for n, size in enumerate(self.sizes[:-1]):
            if size != 1:
                break
            self.strides[n] = 0
        last = self.offset + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        if last >= prod(self.tensor_dims):
            raise ValueError(f"element {last} of a tensor of {prod(self.tensor_dims)}")

    @property
    def transformation_dims(self) -> list[tuple[int, int]]:
        return list(zip(self.sizes, self.strides, strict=True))

    def access_generator(self) -> Iterator[int]:
        for index in product(*map(range, self.sizes)):
            yield self.offset + sum(i * s for i, s in zip(index, self.strides, strict=True))

    def accesses(self) -> tuple[Array, Array]:
        """When each element is visited last (-1: never), and how often."""
        order = np.full(prod(self.tensor_dims), -1, np.int32)
        count = np.zeros(prod(self.tensor_dims), np.int32)
        for time, place in enumerate(self.access_generator()):
            order[place] = time
            count[place] += 1
        return order.reshape(self.tensor_dims), count.reshape(self.tensor_dims)

    def access_order(self) -> Array:
        return self.accesses()[0]

    def access_count(self) -> Array:
        return self.accesses()[1]

    def compare_access_orders(self, other: TensorAccessPattern) -> bool:
        return list(self.access_generator()) == list(other.access_generator())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorAccessPattern):
            return NotImplemented
        mine, theirs = (
            (tap.tensor_dims, tap.offset, tap.transformation_dims) for tap in (self, other)
        )
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"TensorAccessPattern({self.tensor_dims}, offset={self.offset}, "
            f"sizes={self.sizes}, strides={self.strides})"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"TensorAccessPattern.{name}")


class TensorAccessSequence(MutableSequence[TensorAccessPattern]):
    def __init__(self, tensor_dims: Sequence[int], num_steps: int, **options: Any) -> None:
        if num_steps or options:
            raise not_simulated("TensorAccessSequence(num_steps=...); use from_taps")
        self._taps: list[TensorAccessPattern] = []

    @classmethod
    def from_taps(cls, taps: Iterable[TensorAccessPattern]) -> TensorAccessSequence:
        taps = list(taps)
        if not taps or any(tap.tensor_dims != taps[0].tensor_dims for tap in taps):
            raise ValueError("taps of one tensor, at least one")
        sequence = cls(taps[0].tensor_dims, 0)
        sequence._taps = taps
        return sequence

    def __getitem__(self, index: Any) -> Any:
        return self._taps[index]

    def __setitem__(self, index: Any, tap: Any) -> None:
        self._taps[index] = tap

    def __delitem__(self, index: Any) -> None:
        del self._taps[index]

    def __len__(self) -> int:
        return len(self._taps)

    def insert(self, index: int, value: TensorAccessPattern) -> None:
        self._taps.insert(index, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise not_simulated(f"TensorAccessSequence.{name}")
