"""Experts give what numpy gives, and each token the same bits whoever is beside it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from flm.graph.blocks import Blocks
from flm.graph.emit import Emitter, WeightStore
from flm.graph.experts import Experts, experts
from flm.graph.layers import Numerics
from flm.graph.weights import blocks
from flm.graph.weights.blocks import BlockFormat, Matrix, dense, interleaved

Floats = npt.NDArray[np.float32]
COUNT, USED, WIDTH, INNER, TOKENS = 16, 4, 64, 96, 24
FORMATS = {
    "4 bits": BlockFormat(4, 32, minimum=False),
    "8 bits": BlockFormat(8, 32, minimum=False),
    "blocks of 16": BlockFormat(8, 16, minimum=False),
    "floats": None,
}
RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((TOKENS, WIDTH), dtype=np.float32)
LOGITS = RANDOM.standard_normal((TOKENS, COUNT), dtype=np.float32)


def matrix(name: str, rows: int, columns: int, format: BlockFormat | None) -> Matrix:
    random = np.random.default_rng(len(name))
    bias = random.standard_normal(rows, dtype=np.float32)
    if format is None:
        weights = random.standard_normal((rows, columns), dtype=np.float32) / 8
        return replace(dense(name, weights), bias=bias)
    shape = (rows, columns // format.block)
    codes = random.integers(0, 2**format.bits, (*shape, format.block), dtype=np.uint8)
    scales = random.random(shape, dtype=np.float32) / 2**format.bits
    minimum = random.random(shape, dtype=np.float32) - 0.5 if format.minimum else None

    def read(rows: npt.NDArray[np.int64]) -> blocks.Blocks:
        some = None if minimum is None else minimum[rows]
        return blocks.Blocks(format, codes[rows], scales[rows], some)

    return Matrix(name, (rows, columns), format, read, lambda rows: read(rows).dense(), bias)


def mixture(first: BlockFormat | None, second: BlockFormat | None) -> Experts:
    return Experts(
        COUNT,
        USED,
        matrix("gate", COUNT * INNER, WIDTH, first),
        matrix("the up", COUNT * INNER, WIDTH, first),
        matrix("down", COUNT * WIDTH, INNER, second),
        alpha=1.702,
        shift=1.0,
        limit=1.5,
    )


def compiled(
    m: Experts, folder: Path, *, int8_activations: bool
) -> Callable[[Floats, Floats], Floats]:
    emitter = Emitter(WeightStore(folder / "weights.bin"))
    b = Blocks(emitter, Numerics(int8_activations), epsilon=1e-6)
    x = emitter.input("x", "float32", ["B", "T", WIDTH])
    logits = emitter.input("router", "float32", ["B", "T", COUNT])
    y = experts(b, x, logits, m)
    emitter.output(y, "float32", ["B", "T", WIDTH])
    emitter.save(folder / "graph.onnx", "experts")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(folder / "graph.onnx", options)
    frame = {"ids": np.zeros((1, 1), np.int64), "offsets": np.zeros(1, np.int32)}

    def run(x: Floats, logits: Floats) -> Floats:
        fed = {**frame, "last": np.zeros(1, np.int64), "x": x[None], "router": logits[None]}
        (y,) = session.run([session.get_outputs()[0].name], fed)
        return y[0]

    return run


def by_numpy(m: Experts) -> Floats:
    def whole(matrix: Matrix) -> Floats:
        rows = matrix.read_dense(np.arange(matrix.shape[0]))
        return rows.reshape(COUNT, -1, matrix.shape[1]).astype(np.float64)

    gate, up, down = whole(m.gate), whole(m.up), whole(m.down)
    of_gate, of_up, of_down = (each.bias.reshape(COUNT, -1) for each in (m.gate, m.up, m.down))
    y = np.zeros((TOKENS, WIDTH))
    for token in range(TOKENS):
        best = np.argsort(-LOGITS[token])[:USED]
        shares = np.exp(LOGITS[token, best])
        for expert, share in zip(best, shares / shares.sum(), strict=True):
            g = np.minimum(gate[expert] @ X[token] + of_gate[expert], m.limit)
            u = np.clip(up[expert] @ X[token] + of_up[expert], -m.limit, m.limit)
            active = g / (1 + np.exp(-m.alpha * g)) * (u + m.shift)
            y[token] += share * (down[expert] @ active + of_down[expert])
    return y


@pytest.fixture
def float_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime rounds them for experts of 8 bits, whatever a graph asks for, unless told so."""
    monkeypatch.setenv("ORT_QMOE_CPU_QNBIT_GEMM", "fp32")


@pytest.mark.usefixtures("float_activations")
@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", ["4 bits", "blocks of 16"])
def test_what_has_no_minimum_is_exact_and_so_are_mixed_types(
    first: str, second: str, tmp_path: Path
) -> None:
    if FORMATS[first] is None and second == "4 bits":
        second = first
    m = mixture(FORMATS[first], FORMATS[second])
    got = compiled(m, tmp_path, int8_activations=False)(X, LOGITS)
    is_exact = FORMATS[first] is not None or second == first
    np.testing.assert_allclose(got, by_numpy(m), atol=2e-5 if is_exact else 0.05, rtol=0)


@pytest.mark.usefixtures("float_activations")
def test_minimums_are_rounded_away_at_less_than_a_hundredth(tmp_path: Path) -> None:
    m = mixture(BlockFormat(4, 32, minimum=True), FORMATS["8 bits"])
    rounded = m.gate.held_as(BlockFormat(8, 32, minimum=False))
    rows = np.arange(m.gate.shape[0])
    exact = m.gate.read_dense(rows)
    assert np.linalg.norm(rounded.read_dense(rows) - exact) < 0.01 * np.linalg.norm(exact)
    got, wanted = compiled(m, tmp_path, int8_activations=False)(X, LOGITS), by_numpy(m)
    assert np.linalg.norm(got - wanted) < 0.01 * np.linalg.norm(wanted)


@pytest.mark.parametrize("is_rounded", [False, True])
def test_whoever_compiles_is_told_of_rounding(is_rounded: bool, tmp_path: Path) -> None:
    emitter = Emitter(WeightStore(tmp_path / "weights.bin"))
    b = Blocks(emitter, Numerics(), epsilon=1e-6)
    first = BlockFormat(4, 32, minimum=is_rounded)
    experts(b, "x", "logits", mixture(first, FORMATS["blocks of 16"]))
    assert bool(b.notes) is is_rounded


@pytest.mark.parametrize("int8_activations", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_token_gets_the_same_bits_whoever_is_beside_it(
    format: str, int8_activations: bool, tmp_path: Path
) -> None:
    run = compiled(
        mixture(FORMATS[format], FORMATS[format]), tmp_path, int8_activations=int8_activations
    )
    wanted = run(X, LOGITS)
    for size in (2, 3, 7, 11):
        for start in range(0, TOKENS - 1, size):
            some = slice(start, max(start + size, start + 2))
            assert np.array_equal(run(X[some], LOGITS[some]), wanted[some]), some
    crowd = np.repeat(LOGITS[:1], TOKENS, axis=0)  # all at the first token's experts
    crowd[1:3] = LOGITS[1:3]
    assert np.array_equal(run(X, crowd)[:3], wanted[:3])


def test_weights_are_converted_in_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flm.graph.matrices.SLAB_BYTES", 8 * 4 * INNER)
    m = mixture(FORMATS["4 bits"], FORMATS["8 bits"])
    tallest = 0
    for each in (m.gate, m.up, m.down):

        def read(
            rows: npt.NDArray[np.int64], read: Callable[..., blocks.Blocks] = each.read_blocks
        ) -> blocks.Blocks:
            nonlocal tallest
            tallest = max(tallest, len(rows))
            return read(rows)

        object.__setattr__(each, "read_blocks", read)
    compiled(m, tmp_path, int8_activations=True)
    assert 0 < tallest <= 12


@pytest.mark.parametrize("format", ["4 bits", "floats"])
def test_gate_and_up_in_one_tensor_come_apart_and_by_turns(format: str) -> None:
    fused = matrix("fused", 2 * 2 * 3, WIDTH, FORMATS[format])  # two experts of width 3
    whole = fused.read_dense(np.arange(12))
    turns = interleaved(*fused.halved(2)).read_dense(np.array([1, 0, 5, 6, 11]))
    np.testing.assert_array_equal(turns, whole[[3, 0, 5, 6, 11]])
