"""QLinear and QLinearMin of many tokens, 4 bits in blocks of 32; qgemm8 has those of 8 bits."""

from pathlib import Path

from npu_kernels.binding import Binding, Node, Operand, Source
from npu_kernels.qlinear import reference
from npu_kernels.qlinear.binding import Product, weights_of

EIGHT, TOKENS_MAX, COLUMNS_MAX = 8, 32, 16_384
GROUP = reference.CORES * reference.ROWS
FOUR = Product(Path(__file__).parent, "qgemm", 4, reference.BLOCK, reference.pack)


def bind(node: Node) -> tuple[Binding, ...]:
    return bound(node, FOUR)


def bound(node: Node, product: Product) -> tuple[Binding, ...]:
    tokens, columns, weights = node.tokens, node.attributes["K"], weights_of(node, product)
    if not weights or tokens % EIGHT or tokens > TOKENS_MAX or columns > COLUMNS_MAX:
        return ()
    rows = -(-node.attributes["N"] // GROUP) * GROUP
    gaps = rows > node.attributes["N"]
    arguments: dict[str, Source] = {
        "x": Operand("x"),
        "weights": weights,
        "y": Operand("y", row=4 * rows if gaps else 0),
    }
    parameters = {"T": tokens, "N": rows, "K": columns}
    return (Binding(product.folder.name, product.design, parameters, arguments),)
