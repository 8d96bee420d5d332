"""qlinear, both of qlinear8: chunks keep all they are made of, tables and products are right."""

from collections.abc import Callable
from dataclasses import dataclass

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

Blocks = tuple[Array, Array, Array | None]


@dataclass(frozen=True)
class Kind:
    """Weights, and the kernel that takes them."""

    function: str
    name: str
    centre: int
    chunk_bytes: int
    pack: Callable[[Array, Array, Array | None], Array]
    unpack: Callable[[Array, int, int], Blocks]
    exact: Callable[[Array, Array], Array]
    block: int = 32  # those of 16 have no minimums


KINDS = [
    Kind("qlinear", "qlinear", 8, four.CHUNK_BYTES, four.pack, four.unpack, four.qlinear),
    Kind("qlinear8", "qlinear8", 128, eight.CHUNK_BYTES, eight.pack, eight.unpack, eight.qlinear8),
    Kind(
        "qlinear8",
        "qlinear8_by16",
        128,
        eight.CHUNK_BYTES,
        eight.pack_by16,
        eight.unpack_by16,
        eight.qlinear8_by16,
        block=16,
    ),
]
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def weights(random: np.random.Generator, kind: Kind, rows: int, columns: int) -> Blocks:
    codes = random.integers(0, 2 * kind.centre, (rows, columns), np.uint8)
    scales = rounded(np.exp2(random.uniform(-12, -2, (rows, columns // kind.block))))
    minimum = rounded(scales * random.standard_normal(scales.shape))
    return codes, scales, minimum if kind.block == 32 else None


def dense(kind: Kind, codes: Array, scales: Array, minimum: Array | None) -> Array:
    return four.dense(
        codes, scales, np.zeros_like(scales) if minimum is None else minimum, kind.centre
    )


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


@EACH
@pytest.mark.parametrize(("rows", "columns"), [(32, 256), (40, 576), (1, 32), (160, 1536)])
def test_unpack_is_the_inverse_of_pack(kind: Kind, rows: int, columns: int) -> None:
    codes, scales, minimum = weights(np.random.default_rng(1), kind, rows, columns)
    chunks = kind.pack(codes, scales, minimum)
    assert chunks.shape == (-(-rows // 128), -(-columns // 256), 4, kind.chunk_bytes)
    parts = codes, scales, np.zeros_like(scales) if minimum is None else minimum
    for got, wanted in zip(kind.unpack(chunks, rows, columns), parts, strict=True):
        np.testing.assert_array_equal(got, wanted)


@EACH
def test_the_reference_is_the_product(kind: Kind) -> None:
    """Of the dense weights with the floats themselves, but for mantissas of 15 bits."""
    random = np.random.default_rng(2)
    parts = weights(random, kind, 64, 512)
    x = random.standard_normal(512).astype(np.float32)
    y = kind.exact(kind.pack(*parts), four.table(x))[:64]
    assert cosine(y, dense(kind, *parts) @ x) >= 0.999999


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
@EACH
def test_the_product_is_the_references(sanitize: bool, kind: Kind) -> None:
    random, rig = np.random.default_rng(4), Rig(kind.function, sanitize)
    chunks = kind.pack(*weights(random, kind, 64, 640))
    table = held(four.table(np.pad(spread(random, 640), (0, 128))))
    rig.check(run(rig, kind.name, chunks, table), kind.exact(chunks, table))


@needs_compiler
@EACH
def test_extremes(kind: Kind) -> None:
    """The largest codes by the largest mantissas of one sign fit; so do the least."""
    rig, top = Rig(kind.function), 2 * kind.centre - 1
    scales = np.ones((32, 256 // kind.block), np.float32)
    least = -scales if kind.block == 32 else None
    for code in (0, top):
        chunks = kind.pack(np.full((32, 256), code, np.uint8), scales, least)
        for value in (32767.0, -32767.0):
            table = held(four.table(np.full(256, value, np.float32)))
            rig.check(run(rig, kind.name, chunks, table), kind.exact(chunks, table))
    nothing = held(four.table(np.zeros(256, np.float32)))
    np.testing.assert_array_equal(run(rig, kind.name, chunks, nothing), 0)


@needs_compiler
@EACH
def test_codes_are_exact(kind: Kind) -> None:
    """Whole scales, no minimums, one activation: nothing is rounded."""
    random, rig = np.random.default_rng(7), Rig(kind.function)
    codes = random.integers(0, 2 * kind.centre, (32, 256), np.uint8)
    scales = np.exp2(random.integers(-3, 4, (32, 256 // kind.block))).astype(np.float32)
    chunks = kind.pack(codes, scales, None)
    for k in (0, 17, 100, 255):
        x = np.zeros(256, np.float32)
        x[k] = 1
        got = run(rig, kind.name, chunks, held(four.table(x)))
        exact = (codes[:, k].astype(np.float32) - kind.centre) * scales[:, k // kind.block]
        np.testing.assert_array_equal(got[:32], exact)


@needs_compiler
def test_a_weight_whose_codes_are_all_minus_two_is_a_weight() -> None:
    """Its bytes are those of memory that nobody wrote, if one looks at a group of codes alone."""
    rig, scales = Rig("qlinear8"), np.ones((32, 8), np.float32)
    table = held(four.table(spread(np.random.default_rng(6), 256)))
    for code in (-2, -91, -1):
        codes = np.full((32, 256), eight.CENTRE + code, np.uint8)
        chunks = eight.pack(codes, scales, scales)
        rig.check(run(rig, "qlinear8", chunks, table), eight.qlinear8(chunks, table))


def designed(kind: Kind, rows: int, columns: int) -> None:
    """What x holds beyond the columns does not matter, if it is a number."""
    random, rig = np.random.default_rng(5), Rig(kind.function)
    codes, scales, minimum = weights(random, kind, rows, columns)
    chunks = kind.pack(codes, scales, minimum)
    x = random.standard_normal(-(-columns // 256) * 256).astype(np.float32)
    y = unwritten(-(-rows // 128) * 128)
    counters = dispatch(rig, kind.name, {"N": rows, "K": columns}, [x, chunks, y])
    assert counters.bytes_read == x.nbytes + chunks.nbytes
    assert counters.kernel_calls[kind.name] == chunks.nbytes // kind.chunk_bytes
    rig.check(y, kind.exact(chunks, made_table(x)))
    exact = dense(kind, codes, scales, minimum) @ x[:columns].astype(np.float64)
    assert cosine(y[:rows], exact) >= 0.99999


@needs_compiler
@EACH
@pytest.mark.parametrize(("rows", "columns"), [(64, 288), (300, 256)])
def test_designs_run(kind: Kind, rows: int, columns: int) -> None:
    designed(kind, rows, columns)


@needs_compiler
@pytest.mark.slow
@EACH
@pytest.mark.parametrize("model", ["smollm2:135m", "llama3.2:1b", "qwen3.5:4b"])
def test_designs_at_real_shapes(kind: Kind, model: str) -> None:
    """The longest product of each model."""
    shape = Rig(kind.function).manifest.shapes[model]
    designed(kind, shape["N"], shape["K"])
