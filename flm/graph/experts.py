"""Mixtures of experts: gated MLPs of which a router picks a few for each token.

onnxruntime's operator adds up a token's experts in an order that depends on how many other tokens
each of them has, and a row alone is multiplied in another order than beside others (4 bits without
AVX-512, floats). So each pair of token and expert is a row of its own here, an expert of a single
row gets an empty one beside it, and what a token's experts give is added up afterwards, best first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from flm.devices.device import MICROSOFT
from flm.graph.blocks import Blocks
from flm.graph.bodies import function, node, ref
from flm.graph.matrices import store_matrices, store_rows
from flm.graph.weights.blocks import BlockFormat, Matrix, interleaved

if TYPE_CHECKING:
    import onnx

ROUNDED = (
    "The experts of this file are rounded to 8 bits (0.5 % off): their types have minimums. "
    "Q4_0, Q8_0, Q5_0, Q6_K, Q3_K, IQ4 and MXFP4 are taken exactly."
)


@dataclass(frozen=True, slots=True)
class Experts:
    """All of a layer's, stacked by rows, with biases or without. Of what the gate g and the
    projection u give comes g * sigmoid(alpha * g) * (u + shift), g at most `limit`, u within it.
    """

    count: int
    used: int  # by each token
    gate: Matrix  # [count * MLP width, width]
    up: Matrix
    down: Matrix  # [count * width, MLP width]
    alpha: float = 1.0
    shift: float = 0.0
    limit: float = float("inf")


def experts(b: Blocks, x: str, logits: str, m: Experts) -> str:
    """x [B,T,K], each token by the `used` experts its logits [B,T,count] are highest for, weighed
    by the softmax of these logits: [B,T,K].
    """
    format = _common([m.gate, m.up, m.down])
    if format and not all(matrix.is_exact_without_minimums for matrix in (m.gate, m.up, m.down)):
        b.notes.add(ROUNDED)
    gate_up, down = interleaved(_held(m.gate, format), _held(m.up, format)), _held(m.down, format)
    width = m.gate.shape[1]
    attributes: dict[str, Any] = {
        "count": m.count,
        "used": [m.used],
        "repeat": [1, 1, m.used, 1],
        "by_row": [-1, width],
        "lone": 1.0,
        "alpha": m.alpha,
        "shift": m.shift,
        "limit": m.limit,
    }
    inputs = [x, logits]
    for matrix in (gate_up, down):
        inputs += _stored(b, matrix, m.count)
    if format is None:
        return b.e.call(float_experts(), inputs, **attributes)[0]
    attributes |= {"bits": format.bits, "block_size": format.block}
    attributes["accuracy_level"] = b.accuracy_level
    if format.bits == 8:
        attributes["lone"] = -1.0  # measured: alike, alone and beside others
    return b.e.call(qexperts(), inputs, **attributes)[0]


def _common(matrices: Sequence[Matrix]) -> BlockFormat | None:
    """What holds all of them: exactly, if none adds minimums, which the operator cannot. Floats
    (None) stay so only if all are.
    """
    formats = [matrix.format for matrix in matrices if matrix.format]
    if not formats:
        return None
    exact = all(matrix.is_exact_without_minimums for matrix in matrices)
    bits = max(format.bits for format in formats) if exact else 8
    return BlockFormat(bits, min(format.block for format in formats), minimum=False)


def _held(matrix: Matrix, format: BlockFormat | None) -> Matrix:
    return matrix.held_as(format) if format else matrix


def _stored(b: Blocks, matrix: Matrix, count: int) -> list[str]:
    """Names of the weights, [count, rows, ...] each, and of the biases ("": none)."""
    rows, columns = matrix.shape[0] // count, matrix.shape[1]
    if matrix.format is None:
        shapes = {store_rows(b.e.store, matrix).codes: (count, rows, columns)}
    else:
        stored = store_matrices(b.e.store, [matrix])
        assert stored.scales
        shapes = {
            stored.codes: (count, rows, columns * matrix.format.bits // 8),
            stored.scales: (count, rows, columns // matrix.format.block),
        }
    names = [b.e.weight(s.reshaped(s.name + ".experts", shape)) for s, shape in shapes.items()]
    if matrix.bias is None:
        return [*names, ""]
    return [*names, b.vector(matrix.name + ".bias", matrix.bias.reshape(count, rows))]


_SWIGLU = {
    "k": 1,
    "activation_type": "swiglu",
    "swiglu_fusion": 1,
    "normalize_routing_weights": 1,
}


@cache
def qexperts() -> "onnx.FunctionProto":
    """Of blocked weights: codes [E, N, K*bits/8], scales [E, N, K/block], biases [E, N] or none;
    the first's rows are gate and up by turns (see _routed).
    """
    weights = ["codes1", "scales1", "bias1", "codes2", "scales2", "bias2"]
    blocked = ["bits", "block_size", "accuracy_level"]
    operator = node(
        "QMoE",
        ["rows", "router", *weights],
        ["given"],
        MICROSOFT,
        **_SWIGLU,
        weights_prepacked=0,
        expert_weight_bits=ref("int", "bits"),
        block_size=ref("int", "block_size"),
        accuracy_level=ref("int", "accuracy_level"),
        activation_alpha=ref("float", "alpha"),
        activation_beta=ref("float", "shift"),
        swiglu_limit=ref("float", "limit"),
    )
    return _routed("QExperts", weights, blocked, operator)


@cache
def float_experts() -> "onnx.FunctionProto":
    """QExperts of float weights [E, N, K]."""
    weights = ["weight1", "bias1", "weight2", "bias2"]
    operator = node(
        "MoE",
        ["rows", "router", *weights],
        ["given"],
        MICROSOFT,
        **_SWIGLU,
        activation_alpha=ref("float", "alpha"),
        activation_beta=ref("float", "shift"),
        swiglu_limit=ref("float", "limit"),
    )
    return _routed("Experts", weights, [], operator)


def _routed(
    name: str, weights: Sequence[str], attributes: Sequence[str], operator: "onnx.NodeProto"
) -> "onnx.FunctionProto":
    """x [B,T,K] and logits [B,T,E]: [B,T,K]. `operator` gives each of `rows` [R,K] what the expert
    that `router` [R,E] is highest for makes of it. Experts of `lone` rows get one more.
    """
    import onnx
    from onnx import helper

    def constant(name: str, **value: Any) -> "onnx.NodeProto":
        return node("Constant", [], [name], **value)

    switch = helper.make_tensor("switch", onnx.TensorProto.FLOAT, [2], [0.0, 1.0])
    nodes = [
        constant("used", value_ints=ref("ints", "used")),
        constant("count", value_int=ref("int", "count")),
        constant("repeat", value_ints=ref("ints", "repeat")),
        constant("by_row", value_ints=ref("ints", "by_row")),
        constant("lone", value_float=ref("float", "lone")),
        constant("switch", value=switch),
        constant("flat", value_ints=[-1]),
        constant("first", value_ints=[0]),
        constant("pair", value_ints=[-2]),
        node("TopK", ["logits", "used"], ["best", "chosen"], axis=-1),
        node("Softmax", ["best"], ["shares"], axis=-1),
        # A row a pair: pairs [R], tokens [R,K].
        node("Reshape", ["chosen", "flat"], ["pairs"]),
        node("OneHot", ["pairs", "count", "switch"], ["pairs_router"], axis=-1),
        node("Unsqueeze", ["x", "pair"], ["single"]),
        node("Expand", ["single", "repeat"], ["repeated"]),
        node("Reshape", ["repeated", "by_row"], ["tokens"]),
        # Experts that want an empty row more, unless a token is alone in the pass.
        node("ReduceSum", ["pairs_router", "first"], ["rows_of"], keepdims=0),
        node("Equal", ["rows_of", "lone"], ["is_lone"]),
        node("Shape", ["pairs"], ["pair_count"]),
        node("Greater", ["pair_count", "used"], ["is_shared"]),
        node("And", ["is_lone", "is_shared"], ["wants"]),
        node("NonZero", ["wants"], ["wanting"]),
        node("Reshape", ["wanting", "flat"], ["more"]),
        node("OneHot", ["more", "count", "switch"], ["more_router"], axis=-1),
        node("Shape", ["more"], ["more_count"]),
        node("Shape", ["x"], ["width"], start=-1),
        node("Concat", ["more_count", "width"], ["more_shape"], axis=0),
        node("ConstantOfShape", ["more_shape"], ["empty"]),
        node("Concat", ["tokens", "empty"], ["rows"], axis=0),
        node("Concat", ["pairs_router", "more_router"], ["router"], axis=0),
        operator,
        node("Slice", ["given", "first", "pair_count", "first"], ["of_pairs"]),
        node("Shape", ["repeated"], ["by_token"]),
        node("Reshape", ["of_pairs", "by_token"], ["of_token"]),
        node("Unsqueeze", ["shares", "pair"], ["weights"]),
        node("MatMul", ["weights", "of_token"], ["sum"]),
        node("Squeeze", ["sum", "pair"], ["y"]),
    ]
    shared = ["count", "used", "repeat", "by_row", "lone", "alpha", "shift", "limit"]
    return function(name, ["x", "logits", *weights], ["y"], [*shared, *attributes], nodes)
