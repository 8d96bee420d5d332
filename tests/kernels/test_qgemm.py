"""qgemm and both of qgemm8: many tokens at once, as one by one but for bfloat16's rounding."""

import numpy as np
import pytest

from npu_kernels.bf16 import from_bits, rounded
from npu_kernels.qgemm.reference import qgemm, tiled
from npu_kernels.qgemm8.reference import qgemm8, qgemm8_by16
from npu_kernels.qlinear import reference as four
from npu_kernels.qlinear8 import reference as eight
from tests.kernels.host import (
    SANITIZERS,
    Array,
    Rig,
    dispatch,
    held,
    needs_compiler,
    spread,
    unwritten,
)

pytestmark = needs_compiler
EXACT = {"qgemm": qgemm, "qgemm8": qgemm8, "qgemm8_by16": qgemm8_by16}
PACK = {"qgemm": four.pack, "qgemm8": eight.pack, "qgemm8_by16": eight.pack_by16}
CENTRE = {"qgemm": four.CENTRE, "qgemm8": eight.CENTRE, "qgemm8_by16": eight.CENTRE}
BLOCK = {"qgemm": 32, "qgemm8": 32, "qgemm8_by16": 16}  # those of 16 have no minimums
EACH = pytest.mark.parametrize("name", EXACT)


def rig_of(name: str, sanitize: bool = False) -> Rig:
    return Rig(name.removesuffix("_by16"), sanitize)


def weights(random: np.random.Generator, name: str, rows: int, columns: int) -> Array:
    """Chunks."""
    codes = random.integers(0, 2 * CENTRE[name], (rows, columns), np.uint8)
    scales = rounded(np.exp2(random.uniform(-9, -5, (rows, columns // BLOCK[name]))))
    minimum = rounded(scales * random.standard_normal(scales.shape))
    return PACK[name](codes, scales, minimum if BLOCK[name] == 32 else None)


def operands(x: Array) -> Array:
    """Tiles uint16 [K / 256, tokens / 8, 32, 8, 8]."""
    rig, slabs = Rig("qgemm"), []
    for slab in x.reshape(len(x), -1, 256).swapaxes(0, 1):
        tiles = unwritten((len(x) // 8, 32, 8, 8), np.uint16)
        for number in range(len(x) // 8):
            rig("qgemm_rows", held(slab[8 * number :][:8]), tiles, number)
        slabs.append(tiles)
    return np.stack(slabs)


def run(rig: Rig, name: str, x: Array, chunks: Array) -> Array:
    given, tokens, parts = operands(x), len(x), []
    for group in four.by_group(chunks):
        sums, y = unwritten((tokens // 8, 4, 8, 8)), unwritten((tokens, 32))
        for start, (chunk, tiles) in enumerate(zip(group, given, strict=True)):
            rig(name, held(chunk), held(tiles), sums, tokens, start)
        rig(f"{name.removesuffix('_by16')}_finish", sums, y, tokens)
        parts.append(y)
    return np.concatenate(parts, axis=1)


def test_rows_become_tiles() -> None:
    x = spread(np.random.default_rng(1), 16, 256)
    np.testing.assert_array_equal(from_bits(operands(x)[0]), tiled(rounded(x)))


@pytest.mark.parametrize("sanitize", SANITIZERS)
@EACH
@pytest.mark.parametrize("tokens", [8, 24])
def test_it_is_the_product(sanitize: bool, name: str, tokens: int) -> None:
    random, rig = np.random.default_rng(tokens), rig_of(name, sanitize)
    chunks = weights(random, name, 64, 512)
    x = held(random.standard_normal((tokens, 512)).astype(np.float32))
    rig.check(run(rig, name, x, chunks), EXACT[name](x, chunks))


@EACH
def test_codes_are_exact(name: str) -> None:
    """Whole scales, no minimums, one activation: nothing is rounded."""
    random, rig = np.random.default_rng(2), rig_of(name)
    codes = random.integers(0, 2 * CENTRE[name], (32, 256), np.uint8)
    scales = np.exp2(random.integers(-3, 4, (32, 256 // BLOCK[name]))).astype(np.float32)
    chunks = PACK[name](codes, scales, None)
    x = held(np.zeros((8, 256), np.float32))
    x[np.arange(8), np.arange(8) * 33] = 1
    np.testing.assert_array_equal(run(rig, name, x, chunks), EXACT[name](x, chunks))


@EACH
@pytest.mark.parametrize(
    ("tokens", "rows", "slabs"), [(16, 384, 2), pytest.param(32, 2560, 10, marks=pytest.mark.slow)]
)
def test_the_design(name: str, tokens: int, rows: int, slabs: int) -> None:
    random, rig = np.random.default_rng(4), rig_of(name)
    chunks = weights(random, name, rows, 256 * slabs)
    x = random.standard_normal((tokens, 256 * slabs)).astype(np.float32)
    y = unwritten((tokens, rows))
    parameters = {"T": tokens, "N": rows, "K": 256 * slabs}
    counters = dispatch(rig, name, parameters, [x, chunks, y])
    rig.check(y, EXACT[name](x, chunks))
    assert (counters.bytes_read - chunks.nbytes) % x.nbytes == 0, "weights are read once"


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("model", ["qwen3.5:4b", "llama3.2:1b"])
def test_real_shapes(name: str, model: str) -> None:
    """Some rows of the longest product."""
    random, rig = np.random.default_rng(3), rig_of(name)
    shape = rig.manifest.shapes[model]
    chunks = weights(random, name, 64, shape["K"])
    x = held(random.standard_normal((shape["T"], shape["K"])).astype(np.float32))
    rig.check(run(rig, name, x, chunks), EXACT[name](x, chunks))
