"""QLinear and QLinearMin of 4 bits in blocks of 32; qlinear8 has those of 8 bits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from npu_kernels.binding import Array, Binding, Constant, Node, Operand, Source
from npu_kernels.manifest import DATA_BYTES_MAX, manifest
from npu_kernels.qlinear import reference

SLAB_ROWS = 1024  # packed at a time, whole groups


@dataclass(frozen=True, slots=True)
class Product:
    """A design of a folder, and the weights that it takes."""

    folder: Path
    design: str
    bits: int
    block: int
    pack: Callable[[Array, Array, Array | None], Array]
    minimum: bool = True  # whether blocks may have one


FOUR = Product(Path(__file__).parent, "qlinear", 4, reference.BLOCK, reference.pack)


def bind(node: Node) -> tuple[Binding, ...]:
    return bound(node, FOUR)


def bound(node: Node, product: Product) -> tuple[Binding, ...]:
    parameters = {name: node.attributes[name] for name in "NK"}
    kernel = manifest(product.folder).kernel(product.design)
    weights = weights_of(node, product)
    if not weights or node.tokens > 1 or kernel.data_bytes(parameters) > DATA_BYTES_MAX:
        return ()
    arguments: dict[str, Source] = {"x": Operand("x"), "weights": weights, "y": Operand("y")}
    return (Binding(product.folder.name, product.design, parameters, arguments),)


def weights_of(node: Node, product: Product) -> Constant | None:
    """In chunks, which are the same for one token and for many; None: it takes others."""
    stored = node.attributes["bits"], node.attributes["block_size"]
    if (
        stored != (product.bits, product.block)
        or "codes" not in node.constants
        or ("minimum" in node.inputs and not product.minimum)
    ):
        return None
    return Constant(partial(_packed, node, product), "chunks")


def _packed(node: Node, product: Product) -> Array:
    """A graph has codes [N, blocks, bytes], low half first, and minimums [blocks, N]."""
    scales, minimum = node.constants["scales"], node.constants.get("minimum")
    slabs = []
    for start in range(0, len(scales), SLAB_ROWS):
        rows = slice(start, start + SLAB_ROWS)
        codes = node.constants["codes"][rows]
        if product.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        least = None if minimum is None else minimum[:, rows].T
        slabs.append(product.pack(codes.reshape(len(codes), -1), scales[rows], least))
    return np.concatenate(slabs)
