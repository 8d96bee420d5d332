"""The functions of domain `flm`: each is a kernel boundary.

The body here, of stock onnxruntime operators, is what a CPU runs (onnxruntime inlines it at no
cost); a kernel of the same name in npu_kernels/ is what an NPU runs. Shapes: B lanes, T tokens.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from flm.devices.device import MICROSOFT
from flm.graph.bodies import cast as _cast
from flm.graph.bodies import function as _function
from flm.graph.bodies import grouped_query as _grouped_query
from flm.graph.bodies import node as _node
from flm.graph.bodies import ref as _ref

if TYPE_CHECKING:
    import onnx


def _product(outputs: Sequence[str]) -> "onnx.NodeProto":
    return _node(
        "MatMulNBits",
        ["x", "codes", "scales"],
        outputs,
        MICROSOFT,
        K=_ref("int", "K"),
        N=_ref("int", "N"),
        bits=_ref("int", "bits"),
        block_size=_ref("int", "block_size"),
        accuracy_level=_ref("int", "accuracy_level"),
    )


_PRODUCT = ["K", "N", "bits", "block_size", "accuracy_level"]


@cache
def qlinear() -> "onnx.FunctionProto":
    """x [B,T,K] by blocked codes [N, K/block, block*bits/8] and scales [N, K/block]: [B,T,N]."""
    return _function("QLinear", ["x", "codes", "scales"], ["y"], _PRODUCT, [_product(["y"])])


@cache
def qlinear_min() -> "onnx.FunctionProto":
    """QLinear, and each block's minimum times the sum of its inputs. minimum: [K/block, N]."""
    return _function(
        "QLinearMin",
        ["x", "codes", "scales", "minimum"],
        ["y"],
        [*_PRODUCT, "by_block"],
        [
            _product(["product"]),
            _node("Constant", [], ["by_block"], value_ints=_ref("ints", "by_block")),
            _node("Reshape", ["x", "by_block"], ["blocks"]),
            _node("Constant", [], ["last_axis"], value_ints=[-1]),
            _node("ReduceSum", ["blocks", "last_axis"], ["sums"], keepdims=0),
            _node("MatMul", ["sums", "minimum"], ["offset"]),
            _node("Add", ["product", "offset"], ["y"]),
        ],
    )


@cache
def linear() -> "onnx.FunctionProto":
    """x [B,T,K] by float weights [K,N]: [B,T,N]."""
    return _function(
        "Linear", ["x", "weight"], ["y"], [], [_node("MatMul", ["x", "weight"], ["y"])]
    )


@cache
def qembedding() -> "onnx.FunctionProto":
    """Rows of a blocked matrix by id: codes [V, K*bits/8], scales [V, K/block]: [B,T,K]."""
    return _function(
        "QEmbedding", ["ids", "codes", "scales"], ["y"], ["bits", "block_size"], [_gather(["y"])]
    )


@cache
def qembedding_min() -> "onnx.FunctionProto":
    """QEmbedding with a minimum [V, K/block] for each block."""
    return _function(
        "QEmbeddingMin",
        ["ids", "codes", "scales", "minimum"],
        ["y"],
        ["bits", "block_size", "by_block", "flat"],
        [
            _gather(["centred"]),
            _node("Constant", [], ["by_block"], value_ints=_ref("ints", "by_block")),
            _node("Reshape", ["centred", "by_block"], ["blocks"]),
            _node("Gather", ["minimum", "ids"], ["offset"]),
            _node("Constant", [], ["last_axis"], value_ints=[-1]),
            _node("Unsqueeze", ["offset", "last_axis"], ["offsets"]),
            _node("Add", ["blocks", "offsets"], ["moved"]),
            _node("Constant", [], ["flat"], value_ints=_ref("ints", "flat")),
            _node("Reshape", ["moved", "flat"], ["y"]),
        ],
    )


def _gather(outputs: Sequence[str]) -> "onnx.NodeProto":
    return _node(
        "GatherBlockQuantized",
        ["codes", "ids", "scales"],
        outputs,
        MICROSOFT,
        bits=_ref("int", "bits"),
        block_size=_ref("int", "block_size"),
        gather_axis=0,
        quantize_axis=1,
    )


@cache
def embedding() -> "onnx.FunctionProto":
    """Rows of a float matrix [V,K] by id: [B,T,K]."""
    gather = _node("Gather", ["weight", "ids"], ["y"])
    return _function("Embedding", ["ids", "weight"], ["y"], [], [gather])


@cache
def rms_norm() -> "onnx.FunctionProto":
    """x / rms(x) * weight over the last axis."""
    norm = _node(
        "SimplifiedLayerNormalization",
        ["x", "weight"],
        ["y"],
        axis=-1,
        stash_type=1,
        epsilon=_ref("float", "epsilon"),
    )
    return _function("RMSNorm", ["x", "weight"], ["y"], ["epsilon"], [norm])


@cache
def add_rms_norm() -> "onnx.FunctionProto":
    """The residual sum and its norm: (y, sum)."""
    norm = _node(
        "SkipSimplifiedLayerNormalization",
        ["x", "residual", "weight"],
        ["y", "", "", "sum"],
        MICROSOFT,
        epsilon=_ref("float", "epsilon"),
    )
    return _function("AddRMSNorm", ["x", "residual", "weight"], ["y", "sum"], ["epsilon"], [norm])


@cache
def attention(*, packed: bool) -> "onnx.FunctionProto":
    """Rotary positions where `rotary` is 1, rows appended in place, grouped-query attention over
    the last `window` rows (-1: all so far), a token's own among them.

    query [B,T,heads*width] (packed: query, key and value in one), key and value
    [B,T,kv_heads*width], rows [B,kv_heads,capacity,width] of type `row_type`, lengths [B] int32
    (rows with this pass, less one), total int32 (the longest), cos and sin [positions, width/2] if
    `rotary`; sinks [heads] are scores besides the rows', of type `row_type`: with any, even of no
    weight, each token's sums go over all rows at once. (Flash attention's tiles hang on how many
    tokens a pass has, and on the size of a cache.)
    """
    parts = ["query"] if packed else ["query", "key", "value"]
    given = [*(f"{part}_cast" for part in parts), *[""] * (3 - len(parts))]
    rest = ["past_key", "past_value", "lengths", "total", "cos", "sin"]
    node = _grouped_query(
        [*given, *rest, "", "", "sinks"],
        ["attended", "key_rows", "value_rows"],
        local_window_size=_ref("int", "window"),
        do_rotary=_ref("int", "rotary"),
    )
    return _function(
        "PackedAttention" if packed else "Attention",
        [*parts, *rest, "sinks"],
        ["y", "key_rows", "value_rows"],
        ["num_heads", "kv_num_heads", "scale", "window", "rotary", "row_type"],
        [
            *_cast(parts),
            node,
            _node("Cast", ["attended"], ["y"], to=1),
        ],
    )


@cache
def shared_attention() -> "onnx.FunctionProto":
    """One token a lane attends to rows that another layer has stored, turned already: query
    [B,1,heads*width], rows [B,kv_heads,R,width] of type `row_type`, lengths [B] int32 (how many
    count, less one), total int32 (the most), positions [B,1] of the tokens. `no_rows` is
    [0, kv_heads*width]: what is cut off the query as keys and values to append, none.
    """
    inputs = ["query", "key_rows", "value_rows", "lengths", "total", "cos", "sin", "positions"]
    rest = ["key_rows", "value_rows", "lengths", "total", "cos", "sin", "positions"]
    return _function(
        "SharedAttention",
        inputs,
        ["y"],
        ["num_heads", "kv_num_heads", "scale", "row_type", "no_rows"],
        [
            *_cast(["query"]),
            _node("Constant", [], ["starts"], value_ints=[0, 0]),
            _node("Constant", [], ["ends"], value_ints=_ref("ints", "no_rows")),
            _node("Constant", [], ["axes"], value_ints=[1, 2]),
            _node("Slice", ["query_cast", "starts", "ends", "axes"], ["none"]),
            _grouped_query(["query_cast", "none", "none", *rest], ["attended"], do_rotary=1),
            _node("Cast", ["attended"], ["y"], to=1),
        ],
    )


@cache
def causal_conv(*, silu: bool) -> "onnx.FunctionProto":
    """Depthwise convolution over time, and silu of it if told: x [B,T,C], weight [C,1,k], tail
    [B,k-1,C].
    """
    convolved = "convolved" if silu else "y"
    nodes = [
        _node(
            "CausalConvWithState",
            ["x", "weight", "", "tail"],
            [convolved, "next_tail"],
            MICROSOFT,
            activation="none",  # its own silu takes as long as all else (measured)
            ndim=1,
            channels_last=1,
        )
    ]
    if silu:
        nodes.append(_node("QuickGelu", [convolved], ["y"], MICROSOFT, alpha=1.0))
    name, inputs = "CausalConvSilu" if silu else "CausalConv", ["x", "weight", "tail"]
    return _function(name, inputs, ["y", "next_tail"], [], nodes)


@cache
def head_norm() -> "onnx.FunctionProto":
    """x [B,T,heads*width] / rms of each head * weight [width]."""
    return _function(
        "HeadNorm",
        ["x", "weight"],
        ["y"],
        ["epsilon", "by_head", "flat"],
        _normed_heads("y"),
    )


def _normed_heads(output: str) -> list["onnx.NodeProto"]:
    return [
        _node("Constant", [], ["by_head"], value_ints=_ref("ints", "by_head")),
        _node("Reshape", ["x", "by_head"], ["heads"]),
        _node(
            "SimplifiedLayerNormalization",
            ["heads", "weight"],
            ["normed_heads"],
            axis=-1,
            stash_type=1,
            epsilon=_ref("float", "epsilon"),
        ),
        _node("Constant", [], ["flat"], value_ints=_ref("ints", "flat")),
        _node("Reshape", ["normed_heads", "flat"], [output]),
    ]


@cache
def gated_delta() -> "onnx.FunctionProto":
    """The gated delta rule: query and key [B,T,key_heads*width], both of length 1 a head, value
    [B,T,value_heads*width], a and b [B,T,value_heads], decay_bias and decay_rate [value_heads],
    state [B,value_heads,width,width]. Value head v reads key head v // (value_heads/key_heads).
    """
    inputs = ["query", "key", "value", "a", "b", "decay_bias", "decay_rate", "state"]
    gate = ["a", "decay_bias", "decay_rate", "b"]
    return _function(
        "GatedDelta",
        inputs,
        ["y", "next_state"],
        ["key_heads", "value_heads", "scale"],
        [
            _node("LinearAttentionGate", gate, ["decay", "beta"], MICROSOFT),
            _node(
                "LinearAttention",
                ["query", "key", "value", "state", "decay", "beta"],
                ["y", "next_state"],
                MICROSOFT,
                q_num_heads=_ref("int", "key_heads"),
                kv_num_heads=_ref("int", "value_heads"),
                scale=_ref("float", "scale"),
                update_rule="gated_delta",
            ),
        ],
    )


@cache
def gated_rms_norm() -> "onnx.FunctionProto":
    """HeadNorm of x, times silu(gate) [B,T,heads*width]."""
    return _function(
        "GatedRMSNorm",
        ["x", "weight", "gate"],
        ["y"],
        ["epsilon", "by_head", "flat"],
        [
            *_normed_heads("normed"),
            _node("QuickGelu", ["gate"], ["open"], MICROSOFT, alpha=1.0),
            _node("Mul", ["normed", "open"], ["y"]),
        ],
    )


@cache
def gate() -> "onnx.FunctionProto":
    """x * sigmoid(gate)."""
    return _function(
        "Gate",
        ["x", "gate"],
        ["y"],
        [],
        [
            _node("Sigmoid", ["gate"], ["open"]),
            _node("Mul", ["x", "open"], ["y"]),
        ],
    )


@cache
def swiglu() -> "onnx.FunctionProto":
    """silu(gate) * up."""
    return _function(
        "SwiGLU",
        ["gate", "up"],
        ["y"],
        [],
        [
            _node("QuickGelu", ["gate"], ["active"], MICROSOFT, alpha=1.0),
            _node("Mul", ["active", "up"], ["y"]),
        ],
    )


@cache
def geglu() -> "onnx.FunctionProto":
    """gelu(gate) * up, gelu by tanh."""
    return _function(
        "GeGLU",
        ["gate", "up"],
        ["y"],
        [],
        [
            _node("Gelu", ["gate"], ["active"], approximate="tanh"),
            _node("Mul", ["active", "up"], ["y"]),
        ],
    )
