"""A tensor's type as IRON writes it, np.ndarray[shape, np.dtype[element]]; names of elements."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from npu_kernels.iron_sim.faults import not_simulated
from npu_kernels.iron_sim.record import Type


def type_of(annotation: Any) -> Type:
    arguments = get_args(annotation)
    if len(arguments) != 2:
        raise not_simulated(f"{annotation!r} as a tensor's type")
    shape, element = arguments
    return Type(tuple(int(n) for n in shape), np.dtype(get_args(element)[0]))


def parameter_of(annotation: Any) -> Type | np.dtype[Any]:
    """A kernel's parameter: a tensor, or a number."""
    return type_of(annotation) if get_args(annotation) else np.dtype(annotation)


def is_type(value: Any) -> bool:
    return len(get_args(value)) == 2


def str_to_dtype(name: str) -> Any:
    from ml_dtypes import bfloat16

    return {
        "bf16": bfloat16,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "f32": np.float32,
        "ui8": np.uint8,
        "ui16": np.uint16,
        "ui32": np.uint32,
    }[name]


def dtype_to_str(dtype: Any) -> str:
    names: dict[str, str] = {"bfloat16": "bf16", "float32": "f32"}
    name = str(np.dtype(dtype).name)
    return names.get(name, name.replace("uint", "ui").replace("int", "i"))


def refuse(call: str, **given: Any) -> None:
    """Options that are not simulated are refused by name, unless they say nothing."""
    for name, value in given.items():
        if value not in (None, False, 0, [], ()):
            raise not_simulated(f"{call}({name}=...)")
