"""Attention gives a token the same bits however its prompt is cut, from `first_min` tokens on.

Widths of real heads, and prompts longer than any tile: tiny models have neither.
"""

from itertools import pairwise

import numpy as np
import pytest

from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.step import Span, Step
from flm.core.tensor import MemoryKind
from flm.devices.device import MICROSOFT, OPSET
from flm.engine.scheduler import Rota, schedule
from flm.graph import functions
from flm.graph.blocks import NO_SINK
from flm.graph.emit import OURS
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.prefix.cache import PrefixCache
from tests.engine.rig import null_runner
from tests.engine.test_scheduler import reading

HEADS, KV_HEADS, TOKENS = 4, 2, 300
ENDS = [2, 3, 31, 33, 43, 63, 64, 65, 66, 107, 127, 129, 171, 193, 235, 257, 298]


def wide(width: int, dtype: str = "float32") -> MemoryLayout:
    return MemoryLayout((MemoryTensor("key", MemoryKind.ROWS, (KV_HEADS, width), dtype),))


class Attention:
    """flm.Attention alone, over rows of its own."""

    def __init__(self, width: int, dtype: str) -> None:
        import onnx
        import onnxruntime
        from onnx import helper

        self.width, self.dtype = width, np.dtype(dtype)
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        function = functions.attention(packed=False)
        outputs = list(function.output)
        call = helper.make_node(
            function.name, list(function.input), outputs, domain=OURS,
            num_heads=HEADS, kv_num_heads=KV_HEADS, scale=width**-0.5, window=-1, rotary=1,
            row_type=kind,
        )  # fmt: skip
        float32, int32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
        kinds = {"query": float32, "key": float32, "value": float32, "lengths": int32,
                 "total": int32, "y": float32}  # fmt: skip

        def value(name: str) -> "onnx.ValueInfoProto":
            return helper.make_tensor_value_info(name, kinds.get(name, kind), None)

        graph = helper.make_graph(
            [call], "attention", [*map(value, function.input)], [*map(value, outputs)]
        )
        opsets = {"": OPSET, MICROSOFT: 1, OURS: 1}
        model = helper.make_model(
            graph, functions=[function], ir_version=10,
            opset_imports=[helper.make_opsetid(*each) for each in opsets.items()],
        )  # fmt: skip
        self.session = onnxruntime.InferenceSession(model.SerializeToString())

    def read(self, qkv: list[np.ndarray], cuts: list[int]) -> np.ndarray:
        """[tokens, heads * width] of `qkv` [tokens, ...] each, in passes that end at `cuts`."""
        shape = (1, KV_HEADS, TOKENS + 8, self.width)
        past = {name: np.zeros(shape, self.dtype) for name in ("past_key", "past_value")}
        turn = np.ones((TOKENS, self.width // 2), self.dtype)
        read = []
        for start, end in pairwise([0, *cuts]):
            parts = (array[None, start:end] for array in qkv)
            feeds = dict(zip(("query", "key", "value"), parts, strict=True))
            y, *rows = self.session.run(None, feeds | past | {
                "lengths": np.array([end - 1], np.int32), "total": np.array([end], np.int32),
                "cos": turn, "sin": 0 * turn, "sinks": np.full(HEADS, NO_SINK, self.dtype),
            })  # fmt: skip
            past = dict(zip(past, rows, strict=True))
            read.append(y[0])
        return np.concatenate(read)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("width", [64, 96, 128, 192, 256, 512])
def test_any_cut_gives_the_same_bits(width: int, dtype: str) -> None:
    random, attention = np.random.default_rng(width), Attention(width, dtype)
    qkv = [
        random.standard_normal((TOKENS, heads * width), dtype=np.float32)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    wanted = attention.read(qkv, [TOKENS])
    first_min = wide(width, dtype).first_min
    assert first_min == (65 if width > 128 else 1)
    for end in ENDS:
        if end >= first_min:
            assert np.array_equal(attention.read(qkv, [end, TOKENS]), wanted), end
    together = attention.read(qkv, [70, 130, 195, TOKENS])
    assert np.array_equal(together, wanted)


def test_the_first_pass_is_long_enough() -> None:
    cases = (0, 500, 65), (40, 500, 65), (70, 500, 80), (0, 50, 50), (0, 66, 66), (30, 66, 66)
    for start, length, wanted in cases:
        step = schedule(
            [reading(0, length, computed=start)],
            chunk_len=10, rota=Rota(), decode_is_due=False, first_min=65,
        )  # fmt: skip
        assert step is not None
        assert step.spans[0].end == wanted


def test_nothing_is_kept_or_resident_of_what_a_short_pass_read(tmp_path) -> None:
    layout = MemoryLayout((*wide(256).tensors, MemoryTensor("v", MemoryKind.ROWS, (2, 256))))
    runner, lanes = null_runner(tmp_path, layout)
    for end, resident in ((64, 0), (65, 65)):
        runner.run(Step((Span(0, 0, tuple(range(end))),), prefill=True))
        assert len(lanes[0].resident) == resident


def test_places_before_the_first_pass_may_end_are_not_kept() -> None:
    cache = PrefixCache(
        bytes_max=10**9, slots_max=None, gain_min=1, row_bytes=1, state_bytes=0, first_min=65,
        log=print, warn=print,
    )  # fmt: skip
    places = [Boundary(at, BoundaryKind.TURN) for at in (2, 64, 65, 90)]
    lease = cache.lease(Prompt(tuple(range(100)), tuple(places)))
    assert [each.offset for each in lease.boundaries] == [65, 90]
    assert not lease.plan_fork(64)
    lease.close()
