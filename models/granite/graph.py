"""Granite, dense: as llama, with factors on the embedding, each branch, attention and the logits.

A branch's factor r is taken out of the residual stream: with h/r in place of h, a branch is added
as it is, and a norm of h is a norm of h/r whose epsilon is divided by r squared.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flm.errors import BadModelFile
from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.granite import names
from flm.models.rope import half_split, rope_of
from flm.models.shape import contradiction, shape_of
from flm.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Factors:
    embedding: float
    residual: float
    attention: float
    logits: float  # divides them


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape, factors = shape_of(source), _factors(source)
    w = Weights(source, names.GGUF, names.HUGGING_FACE, sizes_of(shape))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon / factors.residual**2)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, factors.attention)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)

    def mixer(x: str, layer: int) -> str:
        query = half_split(w, "query", layer, shape.heads)
        key = half_split(w, "key", layer, shape.kv_heads)
        return b.attention(x, layer, (query, key, w.matrix("value", layer)), heads, rotary)

    return emit_decoder(
        b,
        w,
        shape,
        mixer,
        embedding_scale=factors.embedding / factors.residual,
        logit_scale=1 / factors.logits,
    )


def _factors(source: Source) -> Factors:
    if isinstance(source, GgufFile):
        keys = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")
        embedding, residual, attention, logits = (source.number(f"granite.{key}") for key in keys)
        factors = Factors(embedding, residual, attention, logits)
    else:
        factors = _from_config(source.config)
    for each in fields(factors):
        value = getattr(factors, each.name)
        if not np.isfinite(value) or not 0 < value < 1e6:
            raise contradiction(source.path, f"its factor of {each.name} is {value}")
    return factors


def _from_config(config: dict[str, Any]) -> Factors:
    keys = ("embedding_multiplier", "residual_multiplier", "attention_multiplier")
    try:
        embedding, residual, attention = (float(config[key]) for key in keys)
        return Factors(embedding, residual, attention, logits=float(config["logits_scaling"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error
