"""QLinear and QLinearMin of 8 bits in blocks of 32."""

from pathlib import Path

from npu_kernels.binding import Binding, Node
from npu_kernels.qlinear.binding import product
from npu_kernels.qlinear8.reference import pack

BITS = 8


def bind(node: Node) -> tuple[Binding, ...]:
    return product(node, Path(__file__).parent, BITS, pack)
