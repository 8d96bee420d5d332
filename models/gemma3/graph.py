"""Gemma 3, text: five layers of attention within a window, then one over all; a norm before and
one after each branch (Hugging Face stores norms less one); rotary angles of two kinds.

Layers with a window keep all their rows, so that what was read can be cut at any token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import emit_decoder, gated_mlp, sizes_of
from flm.models.family import Emitted, Source
from flm.models.gemma3 import names
from flm.models.rope import plain_frequencies, rope_of
from flm.models.shape import Shape, contradiction, shape_of
from flm.models.weights import Weights

PATTERN = 6  # every so many layers one attends to all; GGUF files do not say it
LAYERS_27B = 62  # the one size whose scale is not that of its heads' width; nor is this said
NEAR_BASE = 10000.0
# What config.json files leave out where it is transformers' default.
DEFAULTS: Mapping[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


@dataclass(frozen=True, slots=True)
class Attention:
    scale: float
    window: int  # tokens
    near_base: float  # of the angles within a window
    is_full: tuple[bool, ...]  # by layer


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    if isinstance(source, GgufFile):
        shape = shape_of(source)
        attention = _from_gguf(source, shape)
    else:
        text = _text(source.config)
        shape = shape_of(source, text)
        attention = _from_config(text, shape)
    _check(source, shape, attention)
    w = _weights(source, shape)
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    if b.sees:
        b.views_attend_both_ways()
    everywhere = Heads(shape.heads, shape.kv_heads, shape.head_width, attention.scale)
    within = replace(everywhere, window=attention.window)
    near = plain_frequencies(replace(shape, rope_base=attention.near_base))
    length = shape.context_length
    far_rotary = b.rotary(rope_of(w, shape).frequencies, length)
    near_rotary = b.rotary(near, length, name="rotary.near")

    def mixer(x: str, layer: int) -> str:
        query, key, value = (w.matrix(name, layer) for name in ("query", "key", "value"))
        norms = w.norm("query_norm", layer), w.norm("key_norm", layer)
        full = attention.is_full[layer]
        heads, rotary = (everywhere, far_rotary) if full else (within, near_rotary)
        return b.attention(x, layer, (query, key, value), heads, rotary, norms)

    return emit_decoder(
        b,
        w,
        shape,
        mixer,
        mlp=gated_mlp(b, w, b.geglu),
        sandwich=True,
        embedding_scale=shape.width**0.5,
    )


def _weights(source: Source, shape: Shape) -> Weights:
    of_head = {"query_norm": (shape.head_width,), "key_norm": (shape.head_width,)}
    tables = (names.HUGGING_FACE, *names.WITH_VISION)
    theirs = next((t for t in tables if t["embedding"] in source), names.HUGGING_FACE)
    return Weights(source, names.GGUF, theirs, {**sizes_of(shape), **of_head}, norm_less=1.0)


def _check(source: Source, shape: Shape, attention: Attention) -> None:
    usable = attention.window > 0 and 1 < attention.near_base < 1e12 and 0 < attention.scale < 1e6
    if not usable or len(attention.is_full) != shape.layers:
        raise contradiction(source.path, f"{shape.layers} layers of {attention}")


def _from_gguf(source: GgufFile, shape: Shape) -> Attention:
    is_27b = shape.layers == LAYERS_27B
    return Attention(
        scale=(shape.width / shape.heads if is_27b else shape.head_width) ** -0.5,
        window=int(source.number("gemma3.attention.sliding_window")),
        near_base=source.number("gemma3.rope.freq_base_swa", NEAR_BASE),
        is_full=_every(PATTERN, shape.layers),
    )


def _every(pattern: int, layers: int) -> tuple[bool, ...]:
    return tuple((i + 1) % pattern == 0 for i in range(layers))


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text part of config.json; its one set of rotary angles is that of full layers."""
    try:
        text = {**DEFAULTS, **(config.get("text_config") or config)}
        rope = text.get("rope_parameters") or {}
        if "full_attention" in rope:
            near = rope["sliding_attention"]["rope_theta"]
            text |= {"rope_parameters": rope["full_attention"], "rope_local_base_freq": near}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error
    return text


def _from_config(text: Mapping[str, Any], shape: Shape) -> Attention:
    if text.get("final_logit_softcapping") or text.get("attn_logit_softcapping"):
        raise UnsupportedModel("capped logits are not built", fix="take another model")
    try:
        pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern")
        kinds = text.get("layer_types")
        return Attention(
            scale=float(text["query_pre_attn_scalar"]) ** -0.5,
            window=int(text["sliding_window"]),
            near_base=float(text.get("rope_local_base_freq") or NEAR_BASE),
            is_full=tuple(kind == "full_attention" for kind in kinds)
            if kinds
            else _every(int(pattern or PATTERN), shape.layers),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error
