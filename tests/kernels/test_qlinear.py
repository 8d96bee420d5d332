"""qlinear and qlinear8: chunks keep all that they are made of, tables and products are right."""

from types import ModuleType

import numpy as np
import pytest

from npu_kernels.bf16 import rounded
from npu_kernels.qlinear import reference as four
from npu_kernels.qlinear8 import reference as eight
from tests.kernels.host import (
    SANITIZERS,
    Array,
    Rig,
    cosine,
    dispatch,
    held,
    needs_compiler,
    spread,
    unwritten,
)

BITS = [pytest.param(four, "qlinear", id="4 bits"), pytest.param(eight, "qlinear8", id="8 bits")]
Blocks = tuple[Array, Array, Array]


def weights(random: np.random.Generator, module: ModuleType, rows: int, columns: int) -> Blocks:
    codes = random.integers(0, 2 * module.CENTRE, (rows, columns), np.uint8)
    scales = rounded(np.exp2(random.uniform(-12, -2, (rows, columns // 32))))
    return codes, scales, rounded(scales * random.standard_normal(scales.shape))


def run(rig: Rig, name: str, chunks: Array, table: Array) -> Array:
    """y [rows, to whole groups], as a core goes about it."""
    parts = []
    for group in four.by_group(chunks):
        y = unwritten(32)
        for number, chunk in enumerate(group):
            rig(name, held(chunk), table, y, number)
        parts.append(y)
    return np.concatenate(parts)


def made_table(x: Array, sanitize: bool = False) -> Array:
    rig, count = Rig("qlinear", sanitize), len(x) // 256
    table = unwritten((count, four.TABLE_BYTES), np.int8)
    for number in range(count):
        rig("qlinear_table", held(x[256 * number :][:256]), table, number)
    return table


@pytest.mark.parametrize(("module", "name"), BITS)
@pytest.mark.parametrize(("rows", "columns"), [(32, 256), (40, 576), (1, 32), (160, 1536)])
def test_unpack_is_the_inverse_of_pack(
    module: ModuleType, name: str, rows: int, columns: int
) -> None:
    parts = weights(np.random.default_rng(1), module, rows, columns)
    chunks = module.pack(*parts)
    assert chunks.shape == (-(-rows // 128), -(-columns // 256), 4, module.CHUNK_BYTES)
    for got, wanted in zip(module.unpack(chunks, rows, columns), parts, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("module", "name"), BITS)
def test_the_reference_is_the_product(module: ModuleType, name: str) -> None:
    """Of the dense weights with the floats themselves, but for mantissas of 15 bits."""
    random = np.random.default_rng(2)
    parts = weights(random, module, 64, 512)
    x = random.standard_normal(512).astype(np.float32)
    y = getattr(module, name)(module.pack(*parts), four.table(x))[:64]
    assert cosine(y, four.dense(*parts, module.CENTRE) @ x) >= 0.999999


@needs_compiler
@pytest.mark.parametrize("sanitize", SANITIZERS)
def test_the_table_is_the_references(sanitize: bool) -> None:
    random = np.random.default_rng(3)
    x = spread(random, 512)
    x[:32] = 0
    x[32:64] = 2.0 ** -np.arange(32)
    x[64:96] = np.float32(1.9999999)
    got, wanted = made_table(x, sanitize).view(np.uint8), four.table(x).view(np.uint8)
    off = got[:, :512].copy().view(np.int16) - wanted[:, :512].copy().view(np.int16)
    assert np.abs(off).max() <= 1  # a float scaled by its two bfloat16 parts
    np.testing.assert_array_equal(got[:, 544:], wanted[:, 544:])
    sums = got[:, 512:544].copy().view(np.int32)
    mantissas = got[:, :512].copy().view(np.int16).reshape(-1, 8, 32)
    np.testing.assert_array_equal(sums, mantissas.sum(axis=2, dtype=np.int32))
    for start in range(0, 512, 32):
        largest = np.abs(x[start : start + 32]).max()
        error = np.abs(
            four.activations(got.view(np.int8))[start : start + 32] - x[start : start + 32]
        )
        assert error.max() <= largest * 2.0**-14


@needs_compiler
@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize(("module", "name"), BITS)
def test_the_product_is_the_references(sanitize: bool, module: ModuleType, name: str) -> None:
    random, rig = np.random.default_rng(4), Rig(name, sanitize)
    chunks = module.pack(*weights(random, module, 64, 640))
    table = held(four.table(np.pad(spread(random, 640), (0, 128))))
    rig.check(run(rig, name, chunks, table), getattr(module, name)(chunks, table))


@needs_compiler
@pytest.mark.parametrize(("module", "name"), BITS)
def test_extremes(module: ModuleType, name: str) -> None:
    """The largest codes by the largest mantissas of one sign fit; so do the least."""
    rig, top = Rig(name), 2 * module.CENTRE - 1
    scales = np.ones((32, 8), np.float32)
    for code in (0, top):
        chunks = module.pack(np.full((32, 256), code, np.uint8), scales, -scales)
        for value in (32767.0, -32767.0):
            table = held(four.table(np.full(256, value, np.float32)))
            rig.check(run(rig, name, chunks, table), getattr(module, name)(chunks, table))
    nothing = held(four.table(np.zeros(256, np.float32)))
    np.testing.assert_array_equal(run(rig, name, chunks, nothing), 0)


@needs_compiler
def test_a_weight_whose_codes_are_all_minus_two_is_a_weight() -> None:
    """Its bytes are those of memory that nobody wrote, if one looks at a group of codes alone."""
    rig, scales = Rig("qlinear8"), np.ones((32, 8), np.float32)
    table = held(four.table(spread(np.random.default_rng(6), 256)))
    for code in (-2, -91, -1):
        codes = np.full((32, 256), eight.CENTRE + code, np.uint8)
        chunks = eight.pack(codes, scales, scales)
        rig.check(run(rig, "qlinear8", chunks, table), eight.qlinear8(chunks, table))


def designed(module: ModuleType, name: str, rows: int, columns: int) -> None:
    """What x holds beyond the columns does not matter, if it is a number."""
    random, rig = np.random.default_rng(5), Rig(name)
    codes, scales, minimum = weights(random, module, rows, columns)
    chunks = module.pack(codes, scales, minimum)
    x = random.standard_normal(-(-columns // 256) * 256).astype(np.float32)
    y = unwritten(-(-rows // 128) * 128)
    counters = dispatch(rig, name, {"N": rows, "K": columns}, [x, chunks, y])
    assert counters.bytes_read == x.nbytes + chunks.nbytes
    assert counters.kernel_calls[name] == chunks.nbytes // module.CHUNK_BYTES
    rig.check(y, getattr(module, name)(chunks, made_table(x)))
    exact = four.dense(codes, scales, minimum, module.CENTRE) @ x[:columns].astype(np.float64)
    assert cosine(y[:rows], exact) >= 0.99999


@needs_compiler
@pytest.mark.parametrize(("module", "name"), BITS)
@pytest.mark.parametrize(("rows", "columns"), [(64, 288), (300, 256)])
def test_designs_run(module: ModuleType, name: str, rows: int, columns: int) -> None:
    designed(module, name, rows, columns)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), BITS)
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_designs_at_real_shapes(module: ModuleType, name: str, model: str) -> None:
    """The longest product of each model."""
    shape = Rig(name).manifest.shapes[model]
    designed(module, name, shape["N"], shape["K"])
