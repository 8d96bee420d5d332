"""Attention where tokens of a view (core/picture.py) attend to each other both ways.

onnxruntime's GroupQueryAttention is causal for a whole pass or for none of it. So all tokens attend
causally first, which stores their rows and gives those of text the bits that they always have; then
those of each view attend once more, to all rows up to its end: to as many as ever, wherever a pass
begins or ends. Shapes: B lanes, T tokens of this pass, K views in it, V tokens of one of them.
"""

from functools import cache
from typing import TYPE_CHECKING

from flm.graph.bodies import cast as _cast
from flm.graph.bodies import function as _function
from flm.graph.bodies import grouped_query as _grouped_query
from flm.graph.bodies import node as _node
from flm.graph.bodies import ref as _ref

if TYPE_CHECKING:
    import onnx

_PARTS = ["query", "key", "value"]
_INTS = {
    "nothing": [0, 0],
    "start": [0],
    "last": [2**62],  # of an axis, however long
    "batch": [0],
    "tokens": [1],
    "tokens_and_width": [1, 2],
    "rows": [2],
    "heads": [0, 1],
    "one": [1],
}


@cache
def viewed_attention(*, windowed: bool) -> "onnx.FunctionProto":
    """Attention (functions.py) of query, key and value, in which the tokens [first, end) of this
    pass that each of views [K,2] names attend to one another, too; in a window to what is no
    further back than that. offsets [B] int32 is what a lane holds; where there are views B is 1.
    `no_rows` is [0, kv_heads*width]: what is cut off a query as keys and values to append, none.
    """
    from onnx import TensorProto

    rest = ["past_key", "past_value", "lengths", "total", "cos", "sin"]
    return _function(
        "WindowedViewedAttention" if windowed else "ViewedAttention",
        [*_PARTS, *rest, "sinks", "offsets", "views"],
        ["y", "key_rows", "value_rows"],
        ["num_heads", "kv_num_heads", "scale", "window", "rotary", "row_type", "no_rows"],
        [
            *_cast(_PARTS),
            _grouped_query(
                [*(part + "_cast" for part in _PARTS), *rest, "", "", "sinks"],
                ["causal", "key_rows", "value_rows"],
                local_window_size=_ref("int", "window"),
                do_rotary=_ref("int", "rotary"),
            ),
            _node("Cast", ["causal"], ["causal_wide"], to=TensorProto.FLOAT),
            _node("Cast", ["offsets"], ["held"], to=TensorProto.INT64),
            _node("Constant", [], ["window"], value_int=_ref("int", "window")),
            _node("Constant", [], ["no_rows"], value_ints=_ref("ints", "no_rows")),
            *[_node("Constant", [], [name], value_ints=ints) for name, ints in _INTS.items()],
            _node("Constant", [], ["step"], value_int=1),
            _node("Shape", ["views"], ["counted"], start=0, end=1),
            _node("Squeeze", ["counted"], ["count"]),
            _node("Loop", ["count", "", "causal_wide"], ["y"], body=_view(windowed=windowed)),
        ],
    )


def _view(*, windowed: bool) -> "onnx.GraphProto":
    """y with what the tokens of a view attend to in place of what they did causally."""
    from onnx import TensorProto, helper

    def value(name: str, kind: int, shape: list[int] | None) -> "onnx.ValueInfoProto":
        return helper.make_tensor_value_info(name, kind, shape)

    nodes = [*_asked(), *(_near() if windowed else []), *_seen(windowed=windowed)]
    nodes += [
        _node("Slice", ["before", "start", "first", "tokens"], ["ahead"]),
        _node("Slice", ["before", "end", "last", "tokens"], ["behind"]),
        _node("Concat", ["ahead", "seen", "behind"], ["after"], axis=1),
        _node("Identity", ["going"], ["still"]),
    ]
    whole, truth, wide = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
    return helper.make_graph(
        nodes,
        "view",
        [value("number", whole, []), value("going", truth, []), value("before", wide, None)],
        [value("still", truth, []), value("after", wide, None)],
    )


def _asked() -> list["onnx.NodeProto"]:
    """The view's queries [1,V,heads*width], and where its tokens stand in the prompt."""
    return [
        _node("Gather", ["views", "number"], ["view"], axis=0),
        _node("Split", ["view"], ["first", "end"], axis=0, num_outputs=2),
        _node("Slice", ["query_cast", "first", "end", "tokens"], ["asked"]),
        _node("Slice", ["asked", "nothing", "no_rows", "tokens_and_width"], ["none"]),
        _node("Add", ["first", "held"], ["first_at"]),
        _node("Add", ["end", "held"], ["end_at"]),
        _node("Squeeze", ["first_at"], ["first_one"]),
        _node("Squeeze", ["end_at"], ["end_one"]),
        _node("Range", ["first_one", "end_one", "step"], ["places"]),
        _node("Unsqueeze", ["places", "batch"], ["positions"]),
    ]


def _near() -> list["onnx.NodeProto"]:
    """Rows that any of the view's tokens sees, and what keeps each from those too far back."""
    return [
        _node("Sub", ["first_at", "window"], ["beyond"]),
        _node("Add", ["beyond", "one"], ["within"]),
        _node("Max", ["within", "start"], ["oldest"]),
        *[
            _node("Slice", [f"{part}_rows", "oldest", "end_at", "rows"], [f"{part}_near"])
            for part in ("key", "value")
        ],
        _node("Sub", ["end_at", "oldest"], ["near_count"]),
        _node("Squeeze", ["oldest"], ["oldest_one"]),
        _node("Range", ["oldest_one", "end_one", "step"], ["row_places"]),
        _node("Unsqueeze", ["places", "tokens"], ["token_places"]),
        _node("Sub", ["token_places", "row_places"], ["back"]),
        _node("Less", ["back", "window"], ["is_near"]),
        _node("Constant", [], ["seen_as_is"], value_float=0.0),
        _node("Constant", [], ["unseen"], value_float=float("-inf")),
        _node("Where", ["is_near", "seen_as_is", "unseen"], ["bias_wide"]),
        _node("Cast", ["bias_wide"], ["bias_of_all"], to=_ref("int", "row_type")),
        _node("Unsqueeze", ["bias_of_all", "heads"], ["bias"]),
    ]


def _seen(*, windowed: bool) -> list["onnx.NodeProto"]:
    from onnx import TensorProto

    keys, values, count = ("key_near", "value_near", "near_count")
    if not windowed:
        keys, values, count = ("key_rows", "value_rows", "end_at")
    inputs = ["asked", "none", "none", keys, values, "lengths_seen", "total_seen", "cos", "sin"]
    return [
        _node("Cast", [count], ["total_seen"], to=TensorProto.INT32),
        _node("Sub", [count, "one"], ["all_but_one"]),
        _node("Cast", ["all_but_one"], ["lengths_seen"], to=TensorProto.INT32),
        _grouped_query(
            [*inputs, "positions", "bias" if windowed else "", "sinks"],
            ["seen_narrow"],
            do_rotary=_ref("int", "rotary"),
            causal=0,
        ),
        _node("Cast", ["seen_narrow"], ["seen"], to=TensorProto.FLOAT),
    ]
