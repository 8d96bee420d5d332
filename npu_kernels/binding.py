"""What a node of a model's graph becomes on an NPU: dispatches of kernels, and where each of their
buffers' bytes come from. One token of one lane, or many of one prompt.

npu_kernels/<folder>/binding.py has bind(node), which gives the dispatches in order, or none where
the kernels do not take the node's shape: then a CPU runs its body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Who is asked about a function of domain flm, in order; the first that takes the node has it.
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "QLinear": ("lm_head", "qlinear", "qlinear8", "qgemm", "qgemm8"),
    "QLinearMin": ("lm_head", "qlinear", "qlinear8", "qgemm", "qgemm8"),
    "RMSNorm": ("rms_norm",),
    "AddRMSNorm": ("rms_norm",),
    "HeadNorm": ("rms_norm",),
    "SwiGLU": ("swiglu",),
    "Attention": ("attention", "flash_attention"),
    "PackedAttention": ("attention", "flash_attention"),
    "CausalConv": ("causal_conv",),
    "CausalConvSilu": ("causal_conv",),
    "GatedDelta": ("gated_delta", "gated_delta_chunk"),
    "GatedRMSNorm": ("gated_rms_norm",),
    "Gate": ("gate",),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """`row`: bytes from a token's values to the next's, where they do not lie one after another."""

    shape: tuple[int, ...]  # of one lane, [1, tokens, values]; rows have room for all it may hold
    dtype: str = "float32"
    row: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def tokens(self) -> int:
        return self.shape[-2]

    @property
    def token_bytes(self) -> int:
        return self.nbytes // self.tokens

    @property
    def apart(self) -> int:
        """Values from a token's first to the next's."""
        return self.row // np.dtype(self.dtype).itemsize or self.shape[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Inputs and outputs go by the names that flm/graph/functions.py gives them."""

    function: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    constants: Mapping[str, Array]  # those of the inputs that the graph holds
    logits: bool = False  # whether it makes the graph's

    @property
    def tokens(self) -> int:
        """The first input has a row for each."""
        return next(iter(self.inputs.values())).tokens


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or output of the node by name, from a byte on; any other name is room between the
    node's own dispatches. There is room for all that the design moves: beyond the tensor's end its
    reads find finite numbers, and nobody reads what it writes. `row`: as a Tensor has it, for how
    the design moves them.
    """

    name: str
    start: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """Values side by side in one buffer, each with the byte it begins at and its row there, with
    zeros between them: a host brings them together.
    """

    parts: tuple[tuple[int, Operand], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Packed once, as the model is loaded, for all designs that take a node's in this layout; `of`:
    of these inputs alone, so that any nodes with the same have one.
    """

    pack: Callable[[], Array]
    layout: str
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Inputs of the node that stay in a buffer from token to token."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows(Memory):
    """Keys and values together, bfloat16 [KV heads][blocks of 16 tokens][32 * width], with room for
    as many tokens as the node's rows have.
    """


def in_order(state: Array) -> Array:
    return state


@dataclass(frozen=True, slots=True)
class State(Memory):
    """`laid`: a view of a lane's, in the order that its values have in the buffer."""

    laid: Callable[[Array], Array] = in_order


Source = Operand | Joined | Constant | Memory


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One dispatch of a design of folder's manifest. `values` are formulas (manifest.evaluate) over
    `offset`, where the first token stands, `length`, the rows with the last one, and `first`, how
    many of the tokens have their rows already.
    """

    folder: str
    design: str
    parameters: Mapping[str, int]
    arguments: Mapping[str, Source]  # by the manifest's names
    values: Mapping[str, str] = field(default_factory=dict)


def bind(node: Node) -> tuple[Binding, ...]:
    """The node's dispatches; none: a CPU runs it."""
    for folder in FOLDERS.get(node.function, ()):
        found: tuple[Binding, ...] = import_module(f"npu_kernels.{folder}.binding").bind(node)
        if found:
            return found
    return ()
