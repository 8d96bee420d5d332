"""Whether this onnxruntime computes what we rely on: each contributed operator, once, on numbers
worked out in numpy. These operators are no stable contract, so every start asks.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from flm.devices.device import IR_VERSION, MICROSOFT, OPSET, Array
from flm.errors import DeviceUnavailable

REINSTALL = "pip install 'onnxruntime>=1.31.1,<2'"


def self_test() -> None:
    """Raises DeviceUnavailable naming the operator. Takes a few milliseconds."""
    random = np.random.default_rng(0)
    norms, attention = (_norms, _quick_gelu), (_attention, _shared_attention)
    for check in (_matmul_nbits, _gather_quantized, *norms, *attention, _experts):
        for name, got, wanted, tolerance in check(random):
            if got.shape != wanted.shape or not np.allclose(got, wanted, atol=tolerance):
                raise DeviceUnavailable(
                    f"onnxruntime's {name} gives wrong numbers on this machine",
                    fix=f"{REINSTALL}; if it stays so, report it with the output of flm validate",
                )


@cache
def lone_row_alike() -> bool:
    """Whether blocked weights give a row alone the bits they give it beside others. If not (4 bits,
    without AVX-512), a reply decoded alone and beside others may differ. Takes a few milliseconds.
    """
    random = np.random.default_rng(1)
    rows = random.standard_normal((1, 2, 576), dtype=np.float32)
    for bits in (4, 8):
        weights, _ = _blocked(random, bits, 64, 576)
        (alone,) = _multiply(rows[:, :1], weights, bits, accuracy_level=4)
        (beside,) = _multiply(rows, weights, bits, accuracy_level=4)
        if not np.array_equal(alone, beside[:, :1]):
            return False
    return True


Case = tuple[str, Array, Array, float]


def _run(
    type: str,
    inputs: dict[str, Array],
    outputs: int = 1,
    *,
    names: list[str] | None = None,
    weights: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> list[Array]:
    """One node in a graph of its own; `names` orders its inputs where some are left out, `weights`
    are those that follow the others and that the graph holds.
    """
    import onnxruntime
    from onnx import helper, numpy_helper

    weights = weights or {}
    results = [f"output{i}" for i in range(outputs)]
    node = helper.make_node(type, names or [*inputs, *weights], results, **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    unknown = [helper.make_empty_tensor_value_info(n) for n in results]
    held = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph([node], type, infos, unknown, held)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return list(session.run(None, inputs))
    except Exception as error:  # onnxruntime's own types are not public
        raise DeviceUnavailable(
            f"onnxruntime {onnxruntime.__version__} cannot run {type}: {error}",
            fix=REINSTALL,
        ) from error


def _matmul_nbits(random: np.random.Generator) -> list[Case]:
    cases: list[Case] = []
    x = random.standard_normal((1, 3, 64), dtype=np.float32)
    for bits in (4, 8):
        weights, meant = _blocked(random, bits, 8, 64)
        for level, tolerance in ((0, 1e-3), (4, 0.05 * 2**bits)):
            (y,) = _multiply(x, weights, bits, accuracy_level=level)
            cases.append((f"MatMulNBits ({bits} bits)", y, x @ meant.T, tolerance))
    return cases


def _blocked(
    random: np.random.Generator, bits: int, rows: int, columns: int
) -> tuple[dict[str, Array], Array]:
    """A matrix [rows, columns] in blocks of 32: its codes and scales, and what they mean."""
    codes = random.integers(0, 1 << bits, (rows, columns // 32, 32), dtype=np.uint8)
    scales = random.random((rows, columns // 32), dtype=np.float32)
    meant = (codes.astype(np.float32) - (1 << (bits - 1))) * scales[..., None]
    packed = codes if bits == 8 else codes[..., 0::2] | (codes[..., 1::2] << 4)
    return {"codes": packed, "scales": scales}, meant.reshape(rows, columns)


def _multiply(
    x: Array, weights: Mapping[str, Array], bits: int, *, accuracy_level: int
) -> list[Array]:
    """As models are served: onnxruntime packs only weights that the graph holds, and only packed
    ones does it multiply at int8.
    """
    sizes = {"K": x.shape[-1], "N": len(weights["codes"]), "bits": bits, "block_size": 32}
    return _run(
        "MatMulNBits",
        {"x": x},
        weights=weights,
        domain=MICROSOFT,
        accuracy_level=accuracy_level,
        **sizes,
    )


def _gather_quantized(random: np.random.Generator) -> list[Case]:
    codes = random.integers(0, 256, (6, 32), dtype=np.uint8)
    scales = random.random((6, 1), dtype=np.float32)
    ids = np.array([[4, 1]])
    sizes: dict[str, Any] = {"bits": 8, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}
    inputs = {"codes": codes, "ids": ids, "scales": scales}
    (y,) = _run("GatherBlockQuantized", inputs, domain=MICROSOFT, **sizes)
    return [("GatherBlockQuantized", y, ((codes - 128.0) * scales)[ids], 1e-4)]


def _norms(random: np.random.Generator) -> list[Case]:
    x, residual = random.standard_normal((2, 1, 2, 16), dtype=np.float32)
    weight = random.standard_normal(16, dtype=np.float32)

    def norm(v: Array) -> Array:
        normed: Array = v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-5) * weight
        return normed

    inputs = {"x": x, "residual": residual, "weight": weight}
    y, *_, total = _run(
        "SkipSimplifiedLayerNormalization", inputs, 4, domain=MICROSOFT, epsilon=1e-5
    )
    name = "SkipSimplifiedLayerNormalization"
    plain = {"x": x, "weight": weight}
    (z,) = _run("SimplifiedLayerNormalization", plain, axis=-1, epsilon=1e-5, stash_type=1)
    return [
        (name, y, norm(x + residual), 1e-4),
        (name, total, x + residual, 1e-5),
        ("SimplifiedLayerNormalization", z, norm(x), 1e-4),
    ]


def _quick_gelu(random: np.random.Generator) -> list[Case]:
    x = random.standard_normal((4, 16), dtype=np.float32)
    (y,) = _run("QuickGelu", {"x": x}, domain=MICROSOFT, alpha=1.0)
    return [("QuickGelu", y, x / (1 + np.exp(-x)), 1e-5)]


def _attention(random: np.random.Generator) -> list[Case]:
    """Two heads over one kv head, three rows held, two new ones, no rotation (all angles 0); over
    all rows, and within a window shorter than what is held, with a sink a head.
    """
    width, held, new, capacity = 16, 3, 2, 8
    rows = random.standard_normal((2, 1, 1, capacity, width), dtype=np.float32)
    rows[..., held:, :] = 0
    qkv = random.standard_normal((1, new, 4 * width), dtype=np.float32)
    inputs = {
        "qkv": qkv,
        "key": rows[0],
        "value": rows[1],
        "lengths": np.array([held + new - 1], np.int32),
        "total": np.array([held + new], np.int32),
        "cos": np.ones((capacity, width // 2), np.float32),
        "sin": np.zeros((capacity, width // 2), np.float32),
    }
    names = ["qkv", "", "", *list(inputs)[1:]]
    query, key, value = np.split(qkv[0], [2 * width, 3 * width], axis=-1)
    keys = np.concatenate([rows[0, 0, 0, :held], key])
    values = np.concatenate([rows[1, 0, 0, :held], value])
    cases: list[Case] = []
    sinks = {"sinks": random.standard_normal(2, dtype=np.float32)}
    for window, more in ((-1, {}), (2, sinks)):
        sizes: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 1, "local_window_size": window}
        y, *_ = _run(
            "GroupQueryAttention",
            inputs | more,
            3,
            names=[*names, "", "", *more] if more else names,
            domain=MICROSOFT,
            do_rotary=1,
            **sizes,
        )
        wanted = np.zeros((new, 2, width), np.float32)
        for token in range(new):
            end = held + token + 1
            seen = slice(0 if window < 0 else end - window, end)
            scores = query[token].reshape(2, width) @ keys[seen].T / np.sqrt(width)
            total = np.exp(scores).sum(-1) + (np.exp(sinks["sinks"]) if more else 0)
            wanted[token] = np.exp(scores) / total[:, None] @ values[seen]
        cases.append(("GroupQueryAttention", y[0], wanted.reshape(new, 2 * width), 1e-4))
    return cases


def _shared_attention(random: np.random.Generator) -> list[Case]:
    """Two heads over one kv head: three rows held, none new, no rotation."""
    width, held, capacity = 16, 3, 8
    query = random.standard_normal((1, 1, 2 * width), dtype=np.float32)
    rows = random.standard_normal((2, 1, 1, capacity, width), dtype=np.float32)
    inputs = {
        "query": query,
        "no_key": np.zeros((1, 0, width), np.float32),
        "no_value": np.zeros((1, 0, width), np.float32),
        "key": rows[0],
        "value": rows[1],
        "lengths": np.array([held - 1], np.int32),
        "total": np.array([held], np.int32),
        "cos": np.ones((capacity, width // 2), np.float32),
        "sin": np.zeros((capacity, width // 2), np.float32),
        "positions": np.array([[held - 1]]),
    }
    heads: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}
    (y,) = _run("GroupQueryAttention", inputs, domain=MICROSOFT, **heads)
    key, value = rows[:, 0, 0, :held]
    shares = np.exp(query.reshape(2, width) @ key.T / np.sqrt(width))
    wanted = shares / shares.sum(-1, keepdims=True) @ value
    return [("GroupQueryAttention", y, wanted.reshape(1, 1, 2 * width), 1e-4)]


def _experts(random: np.random.Generator) -> list[Case]:
    """Two experts, each with one of two rows; gate and up by turns."""
    width, cases = 32, list[Case]()
    x = random.standard_normal((2, width), dtype=np.float32)
    router = np.eye(2, dtype=np.float32)
    for bits in (4, 8):
        first, second = (_blocked(random, bits, 2 * rows, width) for rows in (2 * width, width))
        weights = {
            f"{name}{i}": (array / 2**bits if name == "scales" else array).reshape(
                2, len(array) // 2, -1
            )
            for i, (parts, _) in enumerate((first, second))
            for name, array in parts.items()
        }
        names = ["x", "router", "codes0", "scales0", "", "codes1", "scales1"]
        (y,) = _run(
            "QMoE",
            {"x": x, "router": router},
            weights=weights,
            names=names,
            domain=MICROSOFT,
            k=1,
            expert_weight_bits=bits,
            block_size=32,
            activation_type="swiglu",
            activation_alpha=1.0,
            activation_beta=0.0,
            swiglu_fusion=1,
            weights_prepacked=0,
            accuracy_level=4,
        )
        wanted = np.zeros_like(y)
        for expert in range(2):
            both, down = (
                meant.reshape(2, -1, width)[expert] / 2**bits for _, meant in (first, second)
            )
            gate, up = (both @ x[expert]).reshape(-1, 2).T
            wanted[expert] = down @ (gate / (1 + np.exp(-gate)) * up)
        cases.append((f"QMoE ({bits} bits)", y, wanted, 0.1))
    return cases
