"""Phi-3 and Phi-4: as llama, with query, key and value in one matrix, gate and up in another,
and LongRoPE: which of two sets of angles is right depends on how long prompts get.

Rows cannot be turned again, so a graph holds one set: the long one, or, built for a context no
longer than the original one, the short one. (transformers chooses at every pass.)
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flm.devices.device import Array
from flm.errors import BadModelFile
from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.phi3 import names
from flm.models.rope import Rope, checked, plain_frequencies, rope_of
from flm.models.shape import Shape, contradiction, shape_of, within_window
from flm.models.weights import Weights


@dataclass(frozen=True, slots=True)
class LongRope:
    original: int  # tokens: the context the model was first trained for
    short: Array  # what frequencies are divided by, [rotary_width / 2]
    long: Array
    magnitude: float


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = within_window(source, shape_of(source), slides=True)
    w = Weights(source, names.GGUF, names.HUGGING_FACE, _sizes(shape))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
    scaled = _longrope(w, shape)
    if scaled and scaled.original < 1:
        raise contradiction(source.path, f"its original context is {scaled.original}")
    length = min(numerics.context_length or shape.context_length, shape.context_length)
    is_short = scaled is not None and length <= scaled.original < shape.context_length
    rope = _rope(w, shape, scaled, is_short=is_short) if scaled else rope_of(w, shape)
    name = "rotary.short" if is_short else "rotary"
    rotary = b.rotary(rope.frequencies, length, magnitude=rope.magnitude, name=name)

    def mixer(x: str, layer: int) -> str:
        return b.attention(x, layer, (w.matrix("qkv", layer),), heads, rotary)

    emitted = emit_decoder(b, w, shape, mixer)
    if scaled and scaled.original < shape.context_length:
        return replace(emitted, context_length_short=scaled.original)
    return emitted


def _rope(w: Weights, shape: Shape, scaled: LongRope, *, is_short: bool) -> Rope:
    divisors = scaled.short if is_short else scaled.long
    with np.errstate(divide="ignore", invalid="ignore"):
        return checked(w, Rope(plain_frequencies(shape) / divisors, scaled.magnitude))


def _sizes(s: Shape) -> dict[str, tuple[int | None, ...]]:
    return {
        **sizes_of(s),
        "qkv": ((s.heads + 2 * s.kv_heads) * s.head_width, s.width),
        "gate_up": (2 * s.mlp_width, s.width),
        "short_divisors": (s.rotary_width // 2,),
        "long_divisors": (s.rotary_width // 2,),
    }


def _longrope(w: Weights, shape: Shape) -> LongRope | None:
    source = w.source
    if isinstance(source, GgufFile):
        if not w.has("long_divisors"):
            return None
        return LongRope(
            int(source.number("phi3.rope.scaling.original_context_length")),
            w.vector("short_divisors"),
            w.vector("long_divisors"),
            source.number("phi3.rope.scaling.attn_factor", 1.0),
        )
    scaling = shape.rope_scaling
    if "long_factor" not in scaling:
        return None
    try:
        return _from_config(source.config, scaling, shape)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error


def _from_config(config: dict[str, Any], scaling: dict[str, Any], shape: Shape) -> LongRope:
    key = "original_max_position_embeddings"
    original = int(scaling.get(key) or config[key])
    short, long = (
        np.array(scaling[f"{name}_factor"], np.float64).reshape(shape.rotary_width // 2)
        for name in ("short", "long")
    )
    factor = float(scaling.get("factor") or config["max_position_embeddings"] / original)
    magnitude = np.sqrt(1 + np.log(factor) / np.log(original)) if factor > 1 < original else 1.0
    return LongRope(original, short, long, float(scaling.get("attention_factor") or magnitude))
