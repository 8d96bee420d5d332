"""Functions of domain `flm` that only models with pictures take: in the tower, which makes rows of
a picture, and in the text graph, which reads them.

Shapes: B lanes, T tokens; N patches of one picture, S of a tower's table of places a side.
"""

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


@cache
def placed() -> "onnx.FunctionProto":
    """x [B,T,K], but rows [P,K] for tokens whose place [B,T] is not 0."""
    return _function(
        "Placed",
        ["x", "rows", "places"],
        ["y"],
        [],
        [
            _node("Gather", ["rows", "places"], ["seen"]),
            _node("Constant", [], ["zero"], value_int=0),
            _node("Greater", ["places", "zero"], ["sees"]),
            _node("Constant", [], ["last_axis"], value_ints=[-1]),
            _node("Unsqueeze", ["sees", "last_axis"], ["sees_all"]),
            _node("Where", ["sees_all", "seen", "x"], ["y"]),
        ],
    )


@cache
def deepened() -> "onnx.FunctionProto":
    """x [B,T,K], and rows [P,K] added to it for tokens whose place [B,T] is not 0."""
    return _function(
        "Deepened",
        ["x", "rows", "places"],
        ["y"],
        [],
        [
            _node("Gather", ["rows", "places"], ["part"]),
            _node("Add", ["x", "part"], ["sum"]),
            _node("Constant", [], ["zero"], value_int=0),
            _node("Greater", ["places", "zero"], ["sees"]),
            _node("Constant", [], ["last_axis"], value_ints=[-1]),
            _node("Unsqueeze", ["sees", "last_axis"], ["sees_all"]),
            _node("Where", ["sees_all", "sum", "x"], ["y"]),
        ],
    )


@cache
def rotary_seen() -> "onnx.FunctionProto":
    """Rows of table [positions, pairs] at positions [B,3,T], of each pair the one of the three that
    mask [1,3,1,pairs] has: [B*T, pairs] of type `row_type`. `flat` is [-1, pairs].
    """
    return _function(
        "RotarySeen",
        ["table", "positions", "mask"],
        ["y"],
        ["flat", "row_type"],
        [
            _node("Gather", ["table", "positions"], ["three"]),
            _node("Cast", ["three"], ["three_wide"], to=1),
            _node("Mul", ["three_wide", "mask"], ["own"]),
            _node("Constant", [], ["axis"], value_ints=[1]),
            _node("ReduceSum", ["own", "axis"], ["one"], keepdims=0),
            _node("Constant", [], ["flat"], value_ints=_ref("ints", "flat")),
            _node("Reshape", ["one", "flat"], ["rows"]),
            _node("Cast", ["rows"], ["y"], to=_ref("int", "row_type")),
        ],
    )


@cache
def turned_attention() -> "onnx.FunctionProto":
    """Attention (functions.py) whose cos and sin [B*T, rotary_width/2] are of this pass's tokens
    only; turns [B,T] says which row is whose.
    """
    rest = ["past_key", "past_value", "lengths", "total"]
    turned = [
        _node(
            "RotaryEmbedding",
            [f"{part}_cast", "turns", "cos", "sin"],
            [f"{part}_turned"],
            MICROSOFT,
            num_heads=_ref("int", heads),
            rotary_embedding_dim=_ref("int", "rotary_width"),
        )
        for part, heads in (("query", "num_heads"), ("key", "kv_num_heads"))
    ]
    return _function(
        "TurnedAttention",
        ["query", "key", "value", *rest, "cos", "sin", "sinks", "turns"],
        ["y", "key_rows", "value_rows"],
        ["num_heads", "kv_num_heads", "scale", "window", "rotary_width", "row_type"],
        [
            *_cast(["query", "key", "value"]),
            *turned,
            _grouped_query(
                ["query_turned", "key_turned", "value_cast", *rest, "", "", "", "", "sinks"],
                ["attended", "key_rows", "value_rows"],
                local_window_size=_ref("int", "window"),
                do_rotary=0,
            ),
            _node("Cast", ["attended"], ["y"], to=1),
        ],
    )


@cache
def layer_norm() -> "onnx.FunctionProto":
    """x less its mean, over its deviation, times weight, plus bias, over the last axis."""
    norm = _node(
        "LayerNormalization", ["x", "weight", "bias"], ["y"], epsilon=_ref("float", "epsilon")
    )
    return _function("LayerNorm", ["x", "weight", "bias"], ["y"], ["epsilon"], [norm])


@cache
def gelu(*, tanh: bool) -> "onnx.FunctionProto":
    """x times the share of the normal distribution below it; by tanh, nearly."""
    node = _node("Gelu", ["x"], ["y"], approximate="tanh" if tanh else "none")
    return _function("GeluTanh" if tanh else "Gelu", ["x"], ["y"], [], [node])


@cache
def corners() -> "onnx.FunctionProto":
    """Of table [S*S,K] the four rows that corners [N,4] name, each times its share [N,4]: [N,K]."""
    return _function(
        "Corners",
        ["table", "corners", "shares"],
        ["y"],
        [],
        [
            _node("Gather", ["table", "corners"], ["rows"]),
            _node("Constant", [], ["last_axis"], value_ints=[-1]),
            _node("Unsqueeze", ["shares", "last_axis"], ["each"]),
            _node("Mul", ["rows", "each"], ["parts"]),
            _node("Constant", [], ["four"], value_ints=[1]),
            _node("ReduceSum", ["parts", "four"], ["y"], keepdims=0),
        ],
    )


@cache
def full_attention() -> "onnx.FunctionProto":
    """Every patch attends to all: query, key and value [1,N,heads*width]; half of a head's pairs
    turn by the row and half by the column: cos and sin [N, width/2], turns [1,N].
    """
    attend = _node(
        "MultiHeadAttention",
        ["query_turned", "key_turned", "value"],
        ["y"],
        MICROSOFT,
        num_heads=_ref("int", "num_heads"),
        scale=_ref("float", "scale"),
    )
    return _function(
        "FullAttention",
        ["query", "key", "value", "cos", "sin", "turns"],
        ["y"],
        ["num_heads", "width", "scale"],
        [*_turned(), attend],
    )


@cache
def window_attention() -> "onnx.FunctionProto":
    """FullAttention, but a patch attends to those of its window: windows [W,S] are numbers of
    patches, of which counts [W] int32 come first and the others do not count; seats [N] is where in
    these each patch is. `flat` is [1, -1, heads*width].
    """
    parts = {"query": "query_turned", "key": "key_turned", "value": "value"}
    return _function(
        "WindowAttention",
        ["query", "key", "value", "cos", "sin", "turns", "windows", "counts", "seats"],
        ["y"],
        ["num_heads", "width", "scale", "flat"],
        [
            *_turned(),
            _node("Constant", [], ["first_axis"], value_ints=[0]),
            *[
                node
                for part, turned in parts.items()
                for node in (
                    _node("Squeeze", [turned, "first_axis"], [f"{part}_patches"]),
                    _node("Gather", [f"{part}_patches", "windows"], [f"{part}_windows"]),
                )
            ],
            _node(
                "MultiHeadAttention",
                [*[f"{part}_windows" for part in parts], "", "counts"],
                ["attended"],
                MICROSOFT,
                num_heads=_ref("int", "num_heads"),
                scale=_ref("float", "scale"),
            ),
            _node("Constant", [], ["flat"], value_ints=_ref("ints", "flat")),
            _node("Reshape", ["attended", "flat"], ["seated"]),
            _node("Gather", ["seated", "seats"], ["y"], axis=1),
        ],
    )


def _turned() -> list["onnx.NodeProto"]:
    """Query and key by cos and sin."""
    return [
        _node(
            "RotaryEmbedding",
            [part, "turns", "cos", "sin"],
            [f"{part}_turned"],
            MICROSOFT,
            num_heads=_ref("int", "num_heads"),
            rotary_embedding_dim=_ref("int", "width"),
        )
        for part in ("query", "key")
    ]


@cache
def plain_attention() -> "onnx.FunctionProto":
    """Every patch attends to all of its row, and nothing turns: query, key and value
    [rows,N,heads*width].
    """
    node = _node(
        "MultiHeadAttention",
        ["query", "key", "value"],
        ["y"],
        MICROSOFT,
        num_heads=_ref("int", "num_heads"),
        scale=_ref("float", "scale"),
    )
    inputs = ["query", "key", "value"]
    return _function("PlainAttention", inputs, ["y"], ["num_heads", "scale"], [node])
