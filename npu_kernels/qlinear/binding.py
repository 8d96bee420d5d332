"""QLinear and QLinearMin of 4 bits in blocks of 32; qlinear8 has those of 8 bits."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from npu_kernels.binding import Array, Binding, Constant, Node, Source, Value
from npu_kernels.manifest import DATA_BYTES_MAX, manifest
from npu_kernels.qlinear import reference

BITS = 4
SLAB_ROWS = 1024  # packed at a time, whole groups
Pack = Callable[[Array, Array, Array | None], Array]


def bind(node: Node) -> tuple[Binding, ...]:
    return product(node, Path(__file__).parent, BITS, reference.pack)


def product(node: Node, folder: Path, bits: int, pack: Pack) -> tuple[Binding, ...]:
    attributes, parameters = node.attributes, {name: node.attributes[name] for name in "NK"}
    kernel = manifest(folder).kernel(folder.name)
    if (
        (attributes["bits"], attributes["block_size"]) != (bits, reference.BLOCK)
        or "codes" not in node.constants
        or kernel.data_bytes(parameters) > DATA_BYTES_MAX
    ):
        return ()
    weights = Constant(partial(_packed, node, bits, pack))
    arguments: dict[str, Source] = {"x": Value("x"), "weights": weights, "y": Value("y")}
    return (Binding(folder.name, folder.name, parameters, arguments),)


def _packed(node: Node, bits: int, pack: Pack) -> Array:
    """A graph has codes [N, blocks, bytes], low half first, and minimums [blocks, N]."""
    scales, minimum = node.constants["scales"], node.constants.get("minimum")
    slabs = []
    for start in range(0, len(scales), SLAB_ROWS):
        rows = slice(start, start + SLAB_ROWS)
        codes = node.constants["codes"][rows]
        if bits == BITS:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        least = None if minimum is None else minimum[:, rows].T
        slabs.append(pack(codes.reshape(len(codes), -1), scales[rows], least))
    return np.concatenate(slabs)
