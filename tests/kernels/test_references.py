"""References are what the functions of domain flm compute: their bodies, run by onnxruntime."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from flm.devices.device import MICROSOFT, OPSET
from flm.graph import functions
from flm.graph.emit import OURS
from npu_kernels.attention.reference import attention, rope
from npu_kernels.causal_conv.reference import causal_conv
from npu_kernels.gate.reference import gate
from npu_kernels.gated_delta.reference import gated_delta, gates
from npu_kernels.gated_rms_norm.reference import gated_rms_norm
from npu_kernels.qlinear import reference as four
from npu_kernels.qlinear8 import reference as eight
from npu_kernels.rms_norm.reference import add_rms_norm, rms_norm
from npu_kernels.swiglu.reference import swiglu
from tests.kernels.host import Array

if TYPE_CHECKING:
    import onnx

EPSILON, RANDOM = 1e-6, np.random.default_rng(1)


def run(function: "onnx.FunctionProto", feeds: dict[str, Array], **attributes: Any) -> list[Array]:
    """Outputs of a model that is one call. Inputs that are not fed are missing."""
    import onnxruntime
    from onnx import TensorProto, helper

    inputs = [name if name in feeds else "" for name in function.input]
    while not inputs[-1]:
        inputs.pop()
    call = helper.make_node(function.name, inputs, function.output, domain=OURS, **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in feeds.items()
    ]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in function.output]
    opsets = [helper.make_opsetid(*each) for each in (("", OPSET), (MICROSOFT, 1), (OURS, 1))]
    model = helper.make_model(
        helper.make_graph([call], "one", given, made),
        functions=[function],
        opset_imports=opsets,
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, feeds))


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def same(got: Array, wanted: Array) -> None:
    np.testing.assert_allclose(np.ravel(got), np.ravel(wanted), rtol=2e-5, atol=2e-5)


def test_norms() -> None:
    x, residual, weight = normal(1, 1, 64), normal(1, 1, 64), normal(64)
    feeds = {"x": x, "weight": weight}
    same(run(functions.rms_norm(), feeds, epsilon=EPSILON)[0], rms_norm(x[0, 0], weight, EPSILON))
    feeds["residual"] = residual
    y, total = run(functions.add_rms_norm(), feeds, epsilon=EPSILON)
    wanted = add_rms_norm(x[0, 0], residual[0, 0], weight, EPSILON)
    same(y, wanted[0])
    same(total, wanted[1])


def test_norms_of_heads() -> None:
    x, gate, weight = normal(1, 1, 64), normal(1, 1, 64), normal(16)
    shapes = {"by_head": [0, 0, 4, 16], "flat": [0, 0, 64]}
    y = run(functions.head_norm(), {"x": x, "weight": weight}, epsilon=EPSILON, **shapes)[0]
    heads = x.reshape(4, 16)
    same(y, rms_norm(heads, weight, EPSILON))
    feeds = {"x": x, "weight": weight, "gate": gate}
    y = run(functions.gated_rms_norm(), feeds, epsilon=EPSILON, **shapes)[0]
    same(y, gated_rms_norm(heads, gate.reshape(4, 16), weight, EPSILON))


def test_swiglu() -> None:
    gate, up = 4 * normal(1, 1, 64), normal(1, 1, 64)
    same(run(functions.swiglu(), {"gate": gate, "up": up})[0], swiglu(gate, up))


@pytest.mark.parametrize(("module", "bits"), [(four, 4), (eight, 8)])
def test_qlinear_min(module: Any, bits: int) -> None:
    rows, columns = 32, 256
    codes = RANDOM.integers(0, 2**bits, (rows, columns), np.uint8)
    scales, minimum, x = normal(rows, 8) / 16, normal(rows, 8), normal(1, 1, columns)
    packed = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    feeds = {
        "x": x,
        "codes": packed.reshape(rows, 8, -1),
        "scales": scales,
        "minimum": np.ascontiguousarray(minimum.T),
    }
    sizes = {"K": columns, "N": rows, "bits": bits, "block_size": 32, "accuracy_level": 1}
    y = run(functions.qlinear_min(), feeds, **sizes, by_block=[0, 0, 8, 32])[0]
    wanted = four.dense(codes, scales, minimum, module.CENTRE) @ x[0, 0]
    np.testing.assert_allclose(y[0, 0], wanted, rtol=1e-4, atol=1e-4)


def test_qlinear() -> None:
    codes, scales = RANDOM.integers(0, 256, (32, 256), np.uint8), normal(32, 16) / 16
    feeds = {"x": normal(1, 1, 256), "codes": codes.reshape(32, 16, 16), "scales": scales}
    sizes = {"K": 256, "N": 32, "bits": 8, "block_size": 16, "accuracy_level": 1}
    y = run(functions.qlinear(), feeds, **sizes)[0]
    wanted = four.dense(codes, scales, np.zeros_like(scales), eight.CENTRE) @ feeds["x"][0, 0]
    np.testing.assert_allclose(y[0, 0], wanted, rtol=1e-4, atol=1e-4)


def test_causal_conv() -> None:
    x, weight, tail = normal(1, 1, 32), normal(4, 32), normal(3, 32)
    turned = np.ascontiguousarray(weight.T)[:, None]
    feeds = {"x": x, "weight": turned, "tail": tail[None]}
    for silu in (True, False):
        y, following = run(functions.causal_conv(silu=silu), feeds)
        wanted, kept = causal_conv(x[0], weight, tail, silu)
        same(y, wanted)
        same(following, kept)


def test_gated_delta() -> None:
    heads, width, scale = 4, 16, 0.25
    q, k = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in normal(2, 2, width))
    v, state = normal(heads, width), normal(heads, width, width)
    a, b, bias = normal(3, heads)
    rate = -np.abs(normal(heads))
    feeds = {
        **{n: each.reshape(1, 1, -1) for n, each in zip(("query", "key"), (q, k), strict=True)},
        **{n: each.reshape(1, 1, -1) for n, each in (("value", v), ("a", a), ("b", b))},
        "decay_bias": bias,
        "decay_rate": rate,
        "state": state[None],
    }
    sizes = {"key_heads": 2, "value_heads": heads, "scale": scale}
    y, following = run(functions.gated_delta(), feeds, **sizes)
    both = [np.repeat(each, 2, axis=0) for each in (q, k)]
    wanted = gated_delta(*both, v, *gates(a, b, bias, rate), state, scale)
    same(y, wanted[0])
    same(following, wanted[1])


def test_gate() -> None:
    x, gates = normal(1, 1, 32), 4 * normal(1, 1, 32)
    same(run(functions.gate(), {"x": x, "gate": gates})[0], gate(x, gates))


def test_attention() -> None:
    """One token after ten: turned, appended, attended to."""
    width, past, scale = 32, 10, 0.2
    query, key, value = normal(4, width), normal(1, width), normal(1, width)
    rows = np.zeros((2, 1, 1, 16, width), np.float32)
    rows[:, 0, 0, :past] = normal(2, past, width)
    cos, sin = np.cos(normal(16, width // 2)), np.sin(normal(16, width // 2))
    feeds = {
        **{
            name: each.reshape(1, 1, -1)
            for name, each in (("query", query), ("key", key), ("value", value))
        },
        "past_key": rows[0],
        "past_value": rows[1],
        "lengths": np.array([past], np.int32),
        "total": np.array([past + 1], np.int32),
        "cos": cos,
        "sin": sin,
    }
    sizes = {"num_heads": 4, "kv_num_heads": 1, "scale": scale, "window": -1}
    function = functions.attention(packed=False)
    y, keys, values = run(function, feeds, **sizes, rotary=1, row_type=1)
    turned = [rope(each, cos[past], sin[past]) for each in (query, key)]
    same(keys[0, 0, : past + 1], np.concatenate([rows[0, 0, 0, :past], turned[1]]))
    same(y, attention(turned[0], keys[0, 0, : past + 1], values[0, 0, : past + 1], scale))
