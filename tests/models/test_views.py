"""Tokens of a picture attend to each other both ways, and to no more than a window back; those of
text as if there were none; and all of them alike wherever passes end between pictures.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.devices.device import MICROSOFT, OPSET
from flm.graph import functions
from flm.graph.blocks import NO_SINK
from flm.graph.emit import OURS
from flm.graph.views import viewed_attention

Floats = npt.NDArray[np.float32]
HEADS, KV_HEADS, TOKENS = 4, 2, 330
VIEWS = [(70, 166), (169, 265), (265, 300)]  # the last two without a text between


class Attention:
    """One of our functions alone, over rows of its own."""

    def __init__(self, width: int, dtype: str, window: int | None, *, viewed: bool) -> None:
        import onnx
        import onnxruntime
        from onnx import helper

        self.width, self.dtype, self.viewed = width, np.dtype(dtype), viewed
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        function = functions.attention(packed=False)
        attributes: dict[str, object] = {}
        if viewed:
            function = viewed_attention(windowed=window is not None)
            attributes["no_rows"] = [0, KV_HEADS * width]
        call = helper.make_node(
            function.name, list(function.input), list(function.output), domain=OURS,
            num_heads=HEADS, kv_num_heads=KV_HEADS, scale=width**-0.5, window=window or -1,
            rotary=1, row_type=kind, **attributes,
        )  # fmt: skip
        wide, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
        kinds = dict.fromkeys(("query", "key", "value", "y"), wide)
        kinds |= dict.fromkeys(("lengths", "total", "offsets"), whole)
        kinds["views"] = onnx.TensorProto.INT64

        def values(names: "list[str]") -> "list[onnx.ValueInfoProto]":
            return [helper.make_tensor_value_info(n, kinds.get(n, kind), None) for n in names]

        graph = helper.make_graph(
            [call], "attention", values(list(function.input)), values(list(function.output))
        )
        opsets = {"": OPSET, MICROSOFT: 1, OURS: 1}
        model = helper.make_model(
            graph, functions=[function], ir_version=10,
            opset_imports=[helper.make_opsetid(*each) for each in opsets.items()],
        )  # fmt: skip
        self.session = onnxruntime.InferenceSession(model.SerializeToString())

    def read(self, qkv: list[Floats], views: list[tuple[int, int]], cuts: list[int]) -> Floats:
        """[tokens, heads * width] of `qkv` [tokens, ...] each, in passes that end at `cuts`."""
        shape = (1, KV_HEADS, TOKENS + 8, self.width)
        past = {name: np.full(shape, 7, self.dtype) for name in ("past_key", "past_value")}
        angles = _angles(self.width)
        read = []
        for start, end in pairwise([0, *cuts]):
            parts = (array[None, start:end] for array in qkv)
            feeds = dict(zip(("query", "key", "value"), parts, strict=True)) | past
            feeds |= {
                "lengths": np.array([end - 1], np.int32), "total": np.array([end], np.int32),
                "cos": np.cos(angles).astype(self.dtype), "sin": np.sin(angles).astype(self.dtype),
                "sinks": np.full(HEADS, NO_SINK, self.dtype),
            }  # fmt: skip
            if self.viewed:
                here = [(a - start, b - start) for a, b in views if start <= a and b <= end]
                feeds["views"] = np.array(here, np.int64).reshape(-1, 2)
                feeds["offsets"] = np.array([start], np.int32)
            y, *rows = self.session.run(None, feeds)
            past = dict(zip(past, rows, strict=True))
            read.append(y[0])
        return np.concatenate(read)


def _angles(width: int) -> npt.NDArray[np.float64]:
    steps = 10000.0 ** (-np.arange(width // 2) / (width // 2))
    return np.outer(np.arange(TOKENS + 8), steps)


def queries_keys_values(width: int) -> list[Floats]:
    random = np.random.default_rng(width)
    return [
        random.standard_normal((TOKENS, heads * width), dtype=np.float32)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]


def exact(qkv: list[Floats], width: int, window: int | None) -> npt.NDArray[np.float64]:
    """By the definition: what is before, or in the same picture, and within the window."""
    cos, sin = np.cos(_angles(width)), np.sin(_angles(width))

    def heads(x: Floats, *, turn: bool) -> npt.NDArray[np.float64]:
        parts = x.reshape(TOKENS, -1, width).astype(np.float64)
        if not turn:
            return parts
        a, b = np.split(parts, 2, axis=-1)
        c, s = cos[:TOKENS, None], sin[:TOKENS, None]
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    query, key, value = (heads(x, turn=turn) for x, turn in zip(qkv, (1, 1, 0), strict=True))
    at = np.arange(TOKENS)
    seen = at <= at[:, None]
    for first, end in VIEWS:
        seen[first:end, first:end] = True
    seen &= at > at[:, None] - (window or TOKENS)
    share = HEADS // KV_HEADS
    scores = np.einsum("thw,shw->hts", query, key.repeat(share, 1)) * width**-0.5
    weights = np.exp(np.where(seen, scores - scores.max(), -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hts,shw->thw", weights, value.repeat(share, 1)).reshape(TOKENS, -1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("window", [None, 64, 200])
@pytest.mark.parametrize("width", [64, 256])
def test_what_attends_to_what(width: int, window: int | None, dtype: str) -> None:
    qkv = queries_keys_values(width)
    attention = Attention(width, dtype, window, viewed=True)
    wanted = exact(qkv, width, window)
    got = attention.read(qkv, VIEWS, [TOKENS])
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 if dtype == "float32" else 1e-2)
    for cuts in ([166, TOKENS], [70, 166, 169, 265, 300, TOKENS], [265, TOKENS]):
        assert np.array_equal(attention.read(qkv, VIEWS, cuts), got), f"passes end at {cuts}"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("window", [None, 64])
def test_text_has_the_bits_that_it_has_without_pictures(window: int | None, dtype: str) -> None:
    qkv = queries_keys_values(256)
    blind = Attention(256, dtype, window, viewed=False).read(qkv, [], [TOKENS])
    seeing = Attention(256, dtype, window, viewed=True)
    assert np.array_equal(seeing.read(qkv, [], [TOKENS]), blind)
    assert np.array_equal(seeing.read(qkv, [], [100, 217, TOKENS]), blind)
    assert np.array_equal(seeing.read(qkv, VIEWS, [TOKENS])[:70], blind[:70])


@pytest.fixture(scope="module")
def narrow() -> Attention:
    return Attention(64, "float32", 48, viewed=True)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    gaps=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    sizes=st.lists(st.integers(2, 60), min_size=4, max_size=4),
    wanted=st.sets(st.integers(2, TOKENS - 2)),
)
def test_any_passes_that_keep_pictures_whole_give_the_same_bits(
    gaps: list[int], sizes: list[int], wanted: set[int], narrow: Attention
) -> None:
    views: list[tuple[int, int]] = []
    for gap, size in zip(gaps, sizes, strict=False):
        first = (views[-1][1] if views else 0) + gap
        if first + size <= TOKENS:
            views.append((first, first + size))
    cuts: list[int] = []
    for cut in [*sorted(wanted), TOKENS]:
        whole = not any(first < cut < end for first, end in views)
        if whole and cut - (cuts[-1] if cuts else 0) > 1:
            cuts.append(cut)
    if cuts[-1] != TOKENS:
        cuts[-1] = TOKENS
    qkv = queries_keys_values(64)
    assert np.array_equal(narrow.read(qkv, views, cuts), narrow.read(qkv, views, [TOKENS]))
