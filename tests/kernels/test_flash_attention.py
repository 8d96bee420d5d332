"""flash_attention: many tokens at once, block by block, it is softmax up to each one's own row."""

import numpy as np
import pytest

from npu_kernels.attention.reference import blocks
from npu_kernels.bf16 import bits_of, rounded, to_bits
from npu_kernels.flash_attention import reference
from tests.kernels.host import SANITIZERS, Array, Rig, dispatch, held, needs_compiler, unwritten

pytestmark = needs_compiler


def run(rig: Rig, query: Array, rows: tuple[Array, Array], position: int, scale: float) -> Array:
    """query [tokens, heads, width]: as much."""
    tokens, heads, width = query.shape
    count = tokens * heads
    operands, state = unwritten(2 * width * count, np.uint16), unwritten((width + 16) * count)
    for eight in range(count // 8):
        places = width, eight, bits_of(scale)
        rig("flash_attention_start", held(query), operands, state, *places)
    padding = [(0, -len(rows[0]) % 16), (0, 0)]
    for number, block in enumerate(blocks(*(np.pad(to_bits(each), padding) for each in rows))):
        places = width, count, heads, position, number
        rig("flash_attention", held(block), operands, state, *places)
    y = unwritten(query.shape)
    for eight in range(count // 8):
        rig("flash_attention_finish", state, y, width, eight)
    return y


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


def designed(tokens: int, heads: int, kv_heads: int, width: int, room: int, position: int) -> None:
    """Every KV head's rows are others, and beyond the last token there are numbers, too."""
    random, rig, scale = np.random.default_rng(position), Rig("flash_attention"), width**-0.5
    query = random.standard_normal((tokens, heads, width)).astype(np.float32)
    pairs = [rounded(random.standard_normal((2, room, width))) for _ in range(kv_heads)]
    rows = held(np.stack([blocks(*map(to_bits, pair)) for pair in pairs]))
    y, share, last = unwritten(query.shape), heads // kv_heads, position + tokens
    parameters = {"T": tokens, "HEADS": heads, "KV_HEADS": kv_heads, "W": width, "C": room}
    values = {"position": position, "blocks": -(-last // 16)}
    buffers = [query, rows, y]
    bits = {"SCALE": bits_of(scale)}
    counters = dispatch(rig, "flash_attention", parameters | bits, buffers, **values)
    for head, (k, v) in enumerate(pairs):
        own = slice(head * share, head * share + share)
        part = query[:, own].astype(np.float64)
        exact = reference.flash_attention(part, k[:last], v[:last], position, scale)
        rig.check(y[:, own], exact)
    read = query.nbytes + rows.nbytes // (room // 16) * values["blocks"]
    assert counters.bytes_read == read  # every block once, for four cores


@pytest.mark.parametrize("position", [0, 8, 41])
def test_the_design(position: int) -> None:
    designed(8, 8, 2, 32, 64, position)


def test_columns_take_turns() -> None:
    """Where there are more KV heads than columns."""
    designed(32, 9, 9, 16, 48, 5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_the_design_at_real_shapes(model: str) -> None:
    shape = Rig("flash_attention").manifest.shapes[model]
    sizes = (shape[name] for name in ("T", "HEADS", "KV_HEADS", "W"))
    designed(*sizes, 256, 200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "heads"), [("smollm2:135m", 3), ("llama3.2:1b", 4), ("qwen3.5:4b", 4)]
)
def test_real_shapes(model: str, heads: int) -> None:
    rig = Rig("flash_attention")
    shape = rig.manifest.shapes[model]
    check(rig, shape["ROWS"] // heads, heads, shape["W"], 700, shape["W"] ** -0.5)
