"""flash_attention: many tokens at once, block by block, it is softmax up to each one's own row."""

import numpy as np
import pytest

from npu_kernels.attention.reference import blocks
from npu_kernels.bf16 import bits_of, rounded, to_bits
from npu_kernels.flash_attention import reference
from tests.kernels.host import SANITIZERS, Array, Rig, held, needs_compiler, unwritten

pytestmark = needs_compiler


def run(rig: Rig, query: Array, rows: tuple[Array, Array], position: int, scale: float) -> Array:
    """query [tokens, heads, width]: as much."""
    tokens, heads, width = query.shape
    count = tokens * heads
    operands, state = unwritten(2 * width * count, np.uint16), unwritten((width + 16) * count)
    for eight, part in enumerate(query.reshape(-1, 8, width)):
        rig("flash_attention_start", held(part), operands, state, width, eight, bits_of(scale))
    padding = [(0, -len(rows[0]) % 16), (0, 0)]
    for number, block in enumerate(blocks(*(np.pad(to_bits(each), padding) for each in rows))):
        places = width, count, heads, position, number
        rig("flash_attention", held(block), operands, state, *places)
    y = [unwritten((8, width)) for _ in range(count // 8)]
    for eight, part in enumerate(y):
        rig("flash_attention_finish", state, part, width, eight)
    return np.concatenate(y).reshape(query.shape)


def check(rig: Rig, tokens: int, heads: int, width: int, position: int, scale: float) -> None:
    random = np.random.default_rng(position)
    query = random.standard_normal((tokens, heads, width)).astype(np.float32)
    rows = [rounded(random.standard_normal((position + tokens, width))) for _ in range(2)]
    y = run(rig, query, (rows[0], rows[1]), position, scale)
    rig.check(y, reference.flash_attention(query.astype(np.float64), *rows, position, scale))


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize(
    ("tokens", "heads", "position"), [(8, 1, 0), (16, 1, 9), (4, 2, 16), (6, 4, 13), (8, 3, 40)]
)
def test_each_token_sees_what_came_before(
    sanitize: bool, tokens: int, heads: int, position: int
) -> None:
    rig = Rig("flash_attention", sanitize)
    for scale in (0.01, 0.2, 4.0):  # the last lets one row win
        check(rig, tokens, heads, 32, position, scale)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "heads"), [("smollm2:135m", 3), ("llama3.2:1b", 4), ("qwen3.5:4b", 4)]
)
def test_real_shapes(model: str, heads: int) -> None:
    rig = Rig("flash_attention")
    shape = rig.manifest.shapes[model]
    check(rig, shape["ROWS"] // heads, heads, shape["W"], 700, shape["W"] ** -0.5)
