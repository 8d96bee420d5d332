"""The seam below which a device lives: memory with explicit sync, and programs that use it.

A program's graph has the inputs `ids` [B, T] int64, `offsets` [B] int32 (rows each lane already
holds) and `last` [1] int64 (the row of the pass whose logits are wanted), and one input `NAME`
for each memory tensor, whose first axis is B. Its outputs are `logits` [B, 1, vocabulary] float32
and `NAME.out` for each memory tensor, written over `NAME` in place. An encoder's has `ids`, padded
at their ends, and `lengths` [B] int32, and gives `embedding` [B, width] float32.

A graph that sees has two inputs more: `pictures` [P, width] float32 are rows of pictures, the first
of them nobody's; `places` [B, T] int64 say which a token is, 0 for one of the text, whose id
counts. Where pictures are spread (core/picture.py) it has a third, `positions` [B, 3, T] int64:
when a token comes, and in which row and column it stands. Where they are whole it has `views`
[K, 2] int64: first token and end, in the pass, of each that it has. A tower's has what its kind
says, by the names in core/picture.py, and gives such rows as `embedding`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flm.core.tensor import TensorSpec

Array = npt.NDArray[Any]

IDS, OFFSETS, LAST, LOGITS, OUT = "ids", "offsets", "last", "logits", ".out"
LENGTHS, EMBEDDING = "lengths", "embedding"
PICTURES, PLACES, POSITIONS, VIEWS = "pictures", "places", "positions", "views"
# The ONNX that graphs are written in: versions, and the domain of onnxruntime's own operators.
OPSET, IR_VERSION, MICROSOFT = 21, 10, "com.microsoft"


class Buffer(Protocol):
    """Memory a program reads and writes. On a device of its own, host and device copies differ."""

    @property
    def spec(self) -> TensorSpec: ...

    def array(self) -> Array:
        """The host's view, valid between the two syncs."""
        ...

    def part(self, start: int, stop: int) -> "Buffer":
        """The lanes [start, stop) along the first axis, sharing this buffer's memory.

        One level only; asking twice gives the same object.
        """
        ...

    def to_device(self, rows: range | None = None) -> None:
        """Make the host's bytes the device's: all, or only these rows of a rows tensor."""
        ...

    def to_host(self, rows: range | None = None) -> None:
        """Make the device's bytes the host's: all, or only these rows of a rows tensor."""
        ...


class Program(Protocol):
    """One model graph, loaded."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def outputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def grid(self) -> int:
        """Where it is not 1, a prompt is best read in passes that end at multiples of it; and where
        there is a state, the numbers of a pass that begins or ends elsewhere are no other's.
        """
        ...

    def run(self, buffers: Mapping[str, Buffer]) -> None:
        """One pass. `buffers` holds ids, offsets, last, logits and each memory tensor by name.

        Raises PassCancelled when `cancel` ended it, DeviceFailed when the device did.
        """
        ...

    def cancel(self) -> None:
        """From another thread: a running pass ends soon; buffers stay usable."""
        ...


class Device(Protocol):
    @property
    def name(self) -> str: ...

    def allocate(self, spec: TensorSpec) -> Buffer:
        """Zeroed memory; a page costs nothing until it is touched where the device allows."""
        ...

    def load(self, graph: Path) -> Program: ...

    def close(self) -> None: ...


def zeros(spec: TensorSpec) -> Array:
    return np.zeros(spec.shape, dtype=spec.dtype)
