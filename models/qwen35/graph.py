"""Qwen3.5 and Qwen3.6, text: three layers of the gated delta rule, then one of full attention.

The norms of both sources are brought to plain weights (Hugging Face stores them less one), and
value heads to Hugging Face's order, grouped by key head, which is what the delta rule reads.
Layers for predicting several tokens at once (MTP), which follow the others, are read past.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flm.devices.device import Array
from flm.errors import BadModelFile
from flm.graph.blocks import Blocks, Heads, Rotary
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.blocks import Matrix
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import Mlp, emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.names import with_vision
from flm.models.qwen35 import names
from flm.models.rope import plain_frequencies, sections_of
from flm.models.shape import Shape, check_shape, contradiction, shape_of, text_config
from flm.models.weights import Weights

L2_EPSILON = 1e-6  # of the delta rule's query and key, fixed in the reference implementation


@dataclass(frozen=True, slots=True)
class Delta:
    """Sizes of the delta rule; keys and values are of one width."""

    key_heads: int
    value_heads: int
    width: int
    taps: int

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.width

    @property
    def groups(self) -> int:
        return self.value_heads // self.key_heads


@dataclass(frozen=True, slots=True)
class Hybrid:
    shape: Shape
    delta: Delta
    recurrent: tuple[bool, ...]  # by layer
    sections: tuple[int, ...] = ()  # pairs of values that turn by time, row and column


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    hybrid = hybrid_of(source)
    b = Blocks(emitter, numerics, epsilon=hybrid.shape.epsilon)
    return emit_hybrid(b, weights_of(source, hybrid), hybrid)


def emit_hybrid(b: Blocks, w: Weights, hybrid: Hybrid, *, mlp: Mlp | None = None) -> Emitted:
    shape = hybrid.shape
    rotary = b.rotary(plain_frequencies(shape), shape.context_length)
    if b.sees and b.spread:
        rotary = b.rotary_seen(rotary, hybrid.sections, shape.rotary_width)

    def mixer(x: str, layer: int) -> str:
        if hybrid.recurrent[layer]:
            return _delta(b, w, hybrid.delta, layer, x)
        return _attention(b, w, shape, rotary, layer, x)

    def output(layer: int) -> Matrix:
        recurrent = hybrid.recurrent[layer]
        return _output(w, hybrid.delta, layer) if recurrent else w.matrix("output", layer)

    return emit_decoder(b, w, shape, mixer, output=output, mlp=mlp)


def _attention(b: Blocks, w: Weights, s: Shape, rotary: Rotary, layer: int, x: str) -> str:
    """Each head's query comes with a gate of its own width: [q | gate] a head."""
    heads = Heads(s.heads, s.kv_heads, s.head_width, s.head_width**-0.5)
    both = w.matrix("query", layer)
    rows = np.arange(both.shape[0]).reshape(s.heads, 2, s.head_width)
    # Under names of their own: one matrix is stored as two.
    query = replace(both.reordered(rows[:, 0].reshape(-1)), name=both.name + ".query")
    gate = replace(both.reordered(rows[:, 1].reshape(-1)), name=both.name + ".gate")
    q, open_, k, v = b.linears(x, query, gate, w.matrix("key", layer), w.matrix("value", layer))
    q = b.head_norm(q, s.heads, *w.norm("query_norm", layer))
    k = b.head_norm(k, s.kv_heads, *w.norm("key_norm", layer))
    return b.gate(b.attend([q, k, v], layer, heads, rotary), open_)


def _delta(b: Blocks, w: Weights, d: Delta, layer: int, x: str) -> str:
    prefix = f"layers.{layer}."
    mixed, z, *gates = b.linears(
        x,
        _value_rows(w, d, w.matrix("mixed", layer), d.width, d.key_heads),
        _value_rows(w, d, w.matrix("z", layer), d.width, 0),
        _value_rows(w, d, w.matrix("a", layer), 1, 0),
        _value_rows(w, d, w.matrix("b", layer), 1, 0),
    )
    tail = b.state(prefix + "convolution", (d.taps - 1, d.channels))
    order = _value_order(w, d, d.channels, d.width, d.key_heads)
    taps = w.vector("convolution", layer).reshape(d.channels, d.taps)[order]
    mixed = b.causal_conv(mixed, tail, w.name("convolution", layer), taps)
    narrow, wide = d.key_heads * d.width, d.value_heads * d.width
    q, k, v = b.e.op("Split", [mixed, b.e.constant([narrow, narrow, wide])], 3, axis=-1)
    # Dividing by the length is a norm whose weight is one over the root of the width.
    unit = np.full(d.width, d.width**-0.5, np.float32)
    name, epsilon = f"unit.{d.width}", L2_EPSILON / d.width
    q, k = (b.head_norm(y, d.key_heads, name, unit, epsilon=epsilon) for y in (q, k))
    rate = w.vector("decay_rate", layer)
    rate = rate if w.is_gguf else -np.exp(rate)
    by_head = _value_order(w, d, d.value_heads, 1, 0)
    bias = w.vector("decay_bias", layer)
    decay = [
        b.vector(w.name("decay_bias", layer), bias[by_head]),
        b.vector(w.name("decay_rate", layer), rate[by_head]),
    ]
    state = b.state(prefix + "recurrent", (d.value_heads, d.width, d.width))
    y = b.gated_delta([q, k, v, *gates, *decay], state, d.key_heads, d.value_heads, d.width)
    norm = w.vector("delta_norm", layer)
    return b.gated_rms_norm(y, z, d.value_heads, w.name("delta_norm", layer), norm)


def _output(w: Weights, d: Delta, layer: int) -> Matrix:
    matrix = w.matrix("delta_output", layer)
    order = _value_order(w, d, d.value_heads * d.width, d.width, 0)
    return matrix.columns_reordered(order) if w.is_gguf else matrix


def _value_order(w: Weights, d: Delta, size: int, width: int, key_heads: int) -> Array:
    """Where each of `size` rows comes from: those of value heads, which follow 2 * `key_heads`
    others, lie in GGUF by their place in the group, and are wanted by key head.
    """
    order = np.arange(size)
    if w.is_gguf:
        start = 2 * key_heads * width
        tiled = order[start:].reshape(d.groups, d.key_heads, width)
        order[start:] = tiled.swapaxes(0, 1).reshape(-1)
    return order


def _value_rows(w: Weights, d: Delta, matrix: Matrix, width: int, key_heads: int) -> Matrix:
    return matrix.reordered(_value_order(w, d, matrix.shape[0], width, key_heads))


def weights_of(
    source: Source,
    hybrid: Hybrid,
    tables: tuple[Mapping[str, str], Mapping[str, str]] = (names.GGUF, names.HUGGING_FACE),
    others: Mapping[str, tuple[int | None, ...]] | None = None,
) -> Weights:
    """By `tables`, GGUF's and Hugging Face's; `others` are sizes besides the usual."""
    s, d = hybrid.shape, hybrid.delta
    wide, inner = s.heads * s.head_width, d.value_heads * d.width
    sizes = {
        **sizes_of(s),
        "query": (2 * wide, s.width),
        "query_norm": (s.head_width,),
        "key_norm": (s.head_width,),
        "mixed": (d.channels, s.width),
        "z": (inner, s.width),
        "a": (d.value_heads, s.width),
        "b": (d.value_heads, s.width),
        "decay_rate": (d.value_heads,),
        "decay_bias": (d.value_heads,),
        "convolution": (d.channels * d.taps,),
        "delta_norm": (d.width,),
        "delta_output": (s.width, inner),
        **(others or {}),
    }
    gguf, hugging_face = tables
    if not isinstance(source, GgufFile) and hugging_face["embedding"] not in source:
        hugging_face = with_vision(hugging_face)
    return Weights(source, gguf, hugging_face, sizes, norm_less=1.0, sensitive=names.SENSITIVE)


def hybrid_of(source: Source) -> Hybrid:
    config = text_config(source)
    if isinstance(source, GgufFile):
        hybrid = _from_gguf(source)
    else:
        hybrid = _from_config(config or {})
    _check(source, hybrid)
    return hybrid


def _check(source: Source, hybrid: Hybrid) -> None:
    check_shape(source.path, hybrid.shape)
    d = hybrid.delta
    sizes = (d.key_heads, d.value_heads, d.width, d.taps - 1)
    if min(sizes) < 1 or d.value_heads % d.key_heads or d.channels > 2**20:
        raise contradiction(source.path, f"its delta rule has sizes {d}")


def _from_gguf(source: GgufFile) -> Hybrid:
    architecture = source.text("general.architecture")

    def number(key: str, default: float | None = None) -> float:
        return source.number(f"{architecture}.{key}", default)

    layers = int(number("block_count")) - int(number("nextn_predict_layers", 0))
    interval = int(number("full_attention_interval", 4))
    listed = source.metadata.get(f"{architecture}.attention.recurrent_layers")
    if not isinstance(listed, list):
        listed = [(i + 1) % interval != 0 for i in range(layers)] if interval > 0 else []
    if not 0 < layers <= len(listed):
        raise contradiction(source.path, f"{layers} layers, kinds of {len(listed)}")
    shape = shape_of(source, is_mixture=True)
    shape = replace(
        shape,
        layers=layers,
        rope_base=number("rope.freq_base", 1e7),
        rope_scaling={},
        rotary_width=int(number("rope.dimension_count", shape.head_width // 4)),
    )
    delta = Delta(
        key_heads=int(number("ssm.group_count")),
        value_heads=int(number("ssm.time_step_rank")),
        width=int(number("ssm.state_size")),
        taps=int(number("ssm.conv_kernel")),
    )
    recurrent = tuple(bool(kind) for kind in listed[:layers])
    sections = source.metadata.get(f"{architecture}.rope.dimension_sections")
    return Hybrid(shape, delta, recurrent, sections_of(sections, shape))


def _from_config(text: Mapping[str, Any]) -> Hybrid:
    try:
        rope = text.get("rope_parameters") or {}
        layers, head_width = int(text["num_hidden_layers"]), int(text["head_dim"])
        interval = int(text.get("full_attention_interval", 4))
        kinds = text.get("layer_types") or [
            "linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)
        ]
        shape = Shape(
            layers=layers,
            width=int(text["hidden_size"]),
            mlp_width=int(text.get("intermediate_size") or text["moe_intermediate_size"]),
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            head_width=head_width,
            epsilon=float(text["rms_norm_eps"]),
            context_length=int(text["max_position_embeddings"]),
            rope_base=float(rope.get("rope_theta", 1e7)),
            rope_scaling={},
            rotary_width=int(head_width * float(rope.get("partial_rotary_factor", 0.25))),
        )
        delta = Delta(
            key_heads=int(text["linear_num_key_heads"]),
            value_heads=int(text["linear_num_value_heads"]),
            width=int(text["linear_key_head_dim"]),
            taps=int(text["linear_conv_kernel_dim"]),
        )
        recurrent = tuple(kind == "linear_attention" for kind in kinds[:layers])
        return Hybrid(shape, delta, recurrent, sections_of(rope.get("mrope_section"), shape))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error
