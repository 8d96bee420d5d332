"""rope: heads are normed and turned, rows land in their slot and nowhere else."""

import numpy as np
import pytest

from npu_kernels.bf16 import bits_of, to_bits
from npu_kernels.rope import reference
from tests.kernels.host import SANITIZERS, Array, Rig, held, needs_compiler, spread, unwritten

pytestmark = needs_compiler
EPSILON = 1e-6


def run(rig: Rig, x: Array, cos: Array, sin: Array, weight: Array | None) -> Array:
    heads, width = x.shape
    none = np.ones(0, np.float32)
    y = unwritten(x.shape)
    position = held(np.concatenate([cos, sin, none if weight is None else weight]))
    sizes = heads, width, 2 * len(cos), int(weight is not None)
    rig("rope", x, position, y, *sizes, bits_of(1 / width), bits_of(EPSILON))
    return y


def angles(position: int, half: int) -> tuple[Array, Array]:
    turned = position * 1e6 ** -(np.arange(half) / half)
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("width", "half"), [(64, 32), (64, 16)], ids=["all turns", "half turns"])
def test_heads_are_turned(sanitize: bool, normed: bool, width: int, half: int) -> None:
    random, rig = np.random.default_rng(1), Rig("rope", sanitize)
    x, weight = spread(random, 2, width), spread(random, width) if normed else None
    for position in (0, 1, 4095, 262143):
        cos, sin = angles(position, half)
        wanted = reference.rope(x.astype(np.float64), cos, sin, weight, EPSILON)
        rig.check(run(rig, x, cos, sin, weight), wanted)


def test_position_zero_turns_nothing() -> None:
    x = held(np.arange(64, dtype=np.float32).reshape(1, 64))
    y = run(Rig("rope"), x, np.ones(32, np.float32), np.zeros(32, np.float32), None)
    np.testing.assert_array_equal(y, x)


def test_blocks_and_rows_are_inverse() -> None:
    random = np.random.default_rng(2)
    keys, values = (random.integers(0, 2**16, (48, 64), np.uint16) for _ in range(2))
    blocks = reference.blocks(keys, values)
    for got, wanted in zip(reference.rows(blocks, 64), (keys, values), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert blocks[1][:8].tolist() == keys[16:24, 0].tolist()  # eight tokens of one dimension
    assert blocks[0][1024:1032].tolist() == values[0, :8].tolist()


@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_a_row_lands_in_its_slot(sanitize: bool) -> None:
    random, rig, width = np.random.default_rng(3), Rig("rope", sanitize), 32
    before = held(to_bits(random.standard_normal(32 * width)))
    for slot in (0, 7, 8, 15):
        row, after = spread(random, 2, width), unwritten(32 * width, np.uint16)
        rig("append_rows", row, before, after, width, slot)
        np.testing.assert_array_equal(after, reference.append_rows(*row, before, slot))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_real_shapes(model: str) -> None:
    random, rig = np.random.default_rng(4), Rig("rope")
    shape = rig.manifest.shapes[model]
    x, weight = spread(random, shape["H"], shape["W"]), spread(random, shape["W"])
    cos, sin = angles(8191, shape["R"] // 2)
    wanted = reference.rope(x.astype(np.float64), cos, sin, weight, EPSILON)
    rig.check(run(rig, x, cos, sin, weight), wanted)
    before = held(to_bits(random.standard_normal(32 * shape["W"])))
    after = unwritten(before.shape, np.uint16)
    rig("append_rows", held(x[:2]), before, after, shape["W"], 5)
    np.testing.assert_array_equal(after, reference.append_rows(*x[:2], before, 5))
