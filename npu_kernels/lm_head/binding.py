"""The last product of a graph, of any weights that QLinear's kernels take."""

from dataclasses import replace
from pathlib import Path

from npu_kernels.binding import Binding, Node, Operand
from npu_kernels.qlinear.binding import FOUR, Product, bound
from npu_kernels.qlinear8.binding import BY16, EIGHT

FOLDER = Path(__file__).parent
PRODUCTS = (FOUR, EIGHT, BY16)


def product_of(bits: int, block: int) -> Product:
    return next(each for each in PRODUCTS if (each.bits, each.block) == (bits, block))


def bind(node: Node) -> tuple[Binding, ...]:
    if not node.logits:
        return ()
    return tuple(
        replace(
            binding,
            folder=FOLDER.name,
            design="lm_head",
            parameters={**binding.parameters, "BITS": product.bits, "BLOCK": product.block},
            arguments={**binding.arguments, "found": Operand("found")},
        )
        for product in PRODUCTS
        for binding in bound(node, product)
    )
