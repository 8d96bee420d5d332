"""qgemm: many tokens at once by weights of 4 bits, as one by one but for bfloat16's rounding."""

import numpy as np
import pytest

from npu_kernels.bf16 import from_bits, rounded
from npu_kernels.qgemm import reference
from npu_kernels.qlinear.reference import pack
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


def weights(random: np.random.Generator, rows: int, columns: int) -> Array:
    """Chunks."""
    codes = random.integers(0, 16, (rows, columns), np.uint8)
    scales = rounded(np.exp2(random.uniform(-9, -5, (rows, columns // 32))))
    return pack(codes, scales, rounded(scales * random.standard_normal(scales.shape)))


def operands(rig: Rig, x: Array) -> Array:
    """Tiles uint16 [K / 256, tokens / 8, 32, 8, 8]."""
    slabs = []
    for slab in x.reshape(len(x), -1, 256).swapaxes(0, 1):
        tiles = unwritten((len(x) // 8, 32, 8, 8), np.uint16)
        for eight in range(len(x) // 8):
            rig("qgemm_rows", held(slab[8 * eight : 8 * eight + 8]), tiles, eight)
        slabs.append(tiles)
    return np.stack(slabs)


def run(rig: Rig, x: Array, chunks: Array) -> Array:
    given, tokens, parts = operands(rig, x), len(x), []
    for group in chunks:
        sums, y = unwritten((tokens // 8, 4, 8, 8)), unwritten((tokens, 32))
        for start, (chunk, tiles) in enumerate(zip(group, given, strict=True)):
            rig("qgemm", held(chunk), held(tiles), sums, tokens, start)
        rig("qgemm_finish", sums, y, tokens)
        parts.append(y)
    return np.concatenate(parts, axis=1)


def test_rows_become_tiles() -> None:
    x = spread(np.random.default_rng(1), 16, 256)
    got = operands(Rig("qgemm"), x)[0]
    np.testing.assert_array_equal(from_bits(got), reference.tiled(rounded(x)))


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("tokens", [8, 24])
def test_it_is_the_product(sanitize: bool, tokens: int) -> None:
    random, rig = np.random.default_rng(tokens), Rig("qgemm", sanitize)
    chunks = weights(random, 64, 512)
    x = held(random.standard_normal((tokens, 512)).astype(np.float32))
    rig.check(run(rig, x, chunks), reference.qgemm(x, chunks))


def test_codes_are_exact() -> None:
    """Whole scales, no minimums, one activation: nothing is rounded."""
    random, rig = np.random.default_rng(2), Rig("qgemm")
    codes = random.integers(0, 16, (32, 256), np.uint8)
    chunks = pack(codes, np.exp2(random.integers(-3, 4, (32, 8))).astype(np.float32), None)
    x = held(np.zeros((8, 256), np.float32))
    x[np.arange(8), np.arange(8) * 33] = 1
    np.testing.assert_array_equal(run(rig, x, chunks), reference.qgemm(x, chunks))


@pytest.mark.parametrize(
    ("tokens", "rows", "slabs"), [(16, 192, 2), pytest.param(32, 2560, 10, marks=pytest.mark.slow)]
)
def test_the_design(tokens: int, rows: int, slabs: int) -> None:
    random, rig = np.random.default_rng(4), Rig("qgemm")
    chunks = weights(random, rows, 256 * slabs)
    x, y = (
        random.standard_normal((tokens, 256 * slabs)).astype(np.float32),
        unwritten((tokens, rows)),
    )
    parameters = {"T": tokens, "N": rows, "KB": slabs}
    counters = dispatch(rig, "qgemm", parameters, [x, chunks, y])
    rig.check(y, reference.qgemm(x, chunks))
    assert counters.bytes_read % x.nbytes == chunks.nbytes % x.nbytes  # weights are read once


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3.5:4b", "llama3.2:1b"])
def test_real_shapes(model: str) -> None:
    """Some rows of the longest product."""
    random, rig = np.random.default_rng(3), Rig("qgemm")
    shape = rig.manifest.shapes[model]
    chunks = weights(random, 64, 256 * shape["KB"])
    x = held(random.standard_normal((shape["T"], 256 * shape["KB"])).astype(np.float32))
    rig.check(run(rig, x, chunks), reference.qgemm(x, chunks))
