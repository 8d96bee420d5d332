"""QLinear and QLinearMin of many tokens, 8 bits in blocks of 32, QLinear in blocks of 16."""

from pathlib import Path

from npu_kernels.binding import Binding, Node
from npu_kernels.qgemm.binding import bound
from npu_kernels.qlinear.binding import Product
from npu_kernels.qlinear8 import reference

FOLDER = Path(__file__).parent
EIGHT = Product(FOLDER, "qgemm8", 8, 32, reference.pack)
BY16 = Product(FOLDER, "qgemm8_by16", 8, 16, reference.pack_by16, minimum=False)


def bind(node: Node) -> tuple[Binding, ...]:
    return bound(node, EIGHT) or bound(node, BY16)
