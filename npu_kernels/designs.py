"""What IRON designs share: kernels and their buffers as the manifest has them, and a program."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npu_kernels.manifest import STACK_BYTES, manifest

INCLUDES = [str(Path(__file__).parent / "include")]
DTYPES = {"float32": np.float32, "int32": np.int32, "uint8": np.uint8, "int8": np.int8}
BITS = {"bfloat16": np.uint16, "float32 bits": np.int32}  # numpy has no bfloat16


def array(count: int, dtype: Any = np.float32) -> Any:
    """The type of a buffer, as IRON writes it."""
    return np.ndarray[(count,), np.dtype[dtype]]  # type: ignore[misc]


def external(folder: Path, symbol: str, shape: Mapping[str, int]) -> tuple[Any, dict[str, Any]]:
    """A kernel at a shape, and the types of its buffers by name."""
    from aie.iron import ExternalFunction

    kernel = manifest(folder).kernel(symbol)
    types = {}
    for argument in kernel.arguments:
        dtype = {**DTYPES, **BITS}[argument.dtype]
        count = kernel.bytes_of(argument.name, shape) // np.dtype(dtype).itemsize
        types[argument.name] = dtype if argument.direction == "value" else array(count, dtype)
    function = ExternalFunction(
        symbol,
        source_file=str(kernel.source),
        arg_types=list(types.values()),
        include_dirs=INCLUDES,
    )
    return function, types


def span(size: int, offset: int, count: int) -> Any:
    """So many of the elements of a host buffer, from an offset on."""
    from aie.helpers.taplib import TensorAccessPattern

    return TensorAccessPattern((1, size), offset, [1, 1, 1, count], [0, 0, 0, 1])


def worker(body: Callable[..., object], arguments: Sequence[Any], **options: Any) -> Any:
    from aie.iron import Worker

    return Worker(body, list(arguments), stack_size=STACK_BYTES, **options)


def program(
    sequence: Callable[..., object], arguments: Sequence[Any], workers: Sequence[Any]
) -> Any:
    """arguments: host buffers' types, then the fifos' ends that the sequence fills and drains."""
    from aie.iron import Program, Runtime
    from aie.iron.device import from_name

    device = from_name("npu2", n_cols=None)  # all of its columns; else it has one
    return Program(device, Runtime(sequence, list(arguments)), workers=list(workers))
