"""Gemma 4 E2B and E4B, text: attention within a window, in some layers over all; a norm before
and one after each branch; and a second embedding, of which each layer adds a part of its own.

The last layers attend to rows that earlier ones stored. They store none, so after the last layer
that does, only the wanted token is computed.
"""

import numpy as np

from flm.devices.device import Array
from flm.graph.blocks import Blocks, Heads, Rotary, SharedRows
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.memory.layout import MemoryLayout
from flm.models.decoder import gated_mlp, sizes_of
from flm.models.family import Emitted, Source
from flm.models.gemma4 import names
from flm.models.gemma4.shape import Gemma4, gemma4_of
from flm.models.names import SENSITIVE
from flm.models.rope import plain_frequencies
from flm.models.shape import Shape, contradiction
from flm.models.weights import Weights


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    g = gemma4_of(source)
    weights = [_weights(source, g, shape) for shape in g.shapes]
    shape, w = g.shapes[0], weights[0]
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    rotary = {
        near: _rotary(b, weights[g.is_near.index(near)], g, near=near) for near in set(g.is_near)
    }
    shared: dict[int, SharedRows] = {}

    def attention(x: str, layer: int) -> str:
        w, heads, r = weights[layer], _heads(g, layer), rotary[g.is_near[layer]]
        if (owner := g.owner(layer)) != layer:
            q = b.linear(x, w.matrix("query", layer))
            q = b.head_norm(q, heads.count, *w.norm("query_norm", layer))
            if owner not in shared:
                shared[owner] = b.shared_rows(owner, heads)
            return b.attend_shared(q, shared[owner], heads, r)
        parts = [w.matrix(name, layer) for name in ("query", "key", "value")]
        q, k, v = b.linears(x, *parts)
        q = b.head_norm(q, heads.count, *w.norm("query_norm", layer))
        k = b.head_norm(k, heads.kv_count, *w.norm("key_norm", layer))
        v = b.head_norm(v, heads.kv_count, f"ones.{heads.width}", np.ones(heads.width, np.float32))
        return b.attend([q, k, v], layer, heads, r)

    residual = b.scaled(b.embedding(w.matrix("embedding")), shape.width**0.5)
    extra = _extra(b, w, g, residual)
    for i, w in enumerate(weights):
        with b.layer(i):
            x = attention(b.rms_norm(residual, *w.norm("input_norm", i)), i)
            if i == g.first_shared - 1:
                x, residual = b.last(x), b.last(residual)
            x = b.linear(x, w.matrix("output", i))
            x = b.rms_norm(x, *w.norm("post_mixer_norm", i))
            x, residual = b.add_rms_norm(x, residual, *w.norm("mlp_norm", i))
            x = gated_mlp(b, w, b.geglu)(x, i)
            residual = b.add(residual, b.rms_norm(x, *w.norm("post_mlp_norm", i)))
            x = b.geglu(b.linear(residual, w.matrix("extra_gate", i)), extra[i])
            x = b.linear(x, w.matrix("extra_output", i))
            residual = b.add(residual, b.rms_norm(x, *w.norm("post_extra_norm", i)))
            residual = b.scaled(residual, float(w.vector("scalar", i)[0]))
    name, norm = w.norm("norm")
    x = b.rms_norm(residual, name, norm / (g.cap or 1))
    b.head(x, w.matrix("head" if w.has("head") else "embedding"), cap=g.cap)
    vocabulary = w.matrix("embedding").shape[0]
    layout, notes = MemoryLayout(tuple(b.memory)), frozenset(b.notes)
    return Emitted(layout, vocabulary, shape.context_length, notes=notes)


def _extra(b: Blocks, w: Weights, g: Gemma4, embedded: str) -> tuple[str, ...]:
    """By layer, what it adds of its own: [B,T,extra_width]; of the wanted token alone from the
    last layer that stores rows on.
    """
    width, epsilon = g.shapes[0].width, g.shapes[0].epsilon
    name, norm = w.norm("context_norm")
    context = b.linear(embedded, w.matrix("context"))
    # The context's factor of width**-0.5 is left to its norm: it only divides the epsilon. That of
    # the sum of both, 2**-0.5, is in the norm's weight and the table's factor.
    context = b.head_norm(context, g.layers, name, norm * 2**-0.5, epsilon=epsilon * width)
    own = b.scaled(b.embedding(w.matrix("table")), (g.extra_width / 2) ** 0.5)
    both, cut = b.add(context, own), g.first_shared - 1
    return b.split(both, g.layers)[:cut] + b.split(b.last(both), g.layers)[cut:]


def _heads(g: Gemma4, layer: int) -> Heads:
    s = g.shapes[layer]
    window = g.window if g.is_near[layer] else None
    return Heads(s.heads, s.kv_heads, s.head_width, scale=1.0, window=window)


def _rotary(b: Blocks, w: Weights, g: Gemma4, *, near: bool) -> Rotary:
    shape = g.shapes[g.is_near.index(near)]
    frequencies = plain_frequencies(shape) if near else _far_frequencies(w, shape)
    name = "rotary.near" if near else "rotary"
    return b.rotary(frequencies, shape.context_length, name=name)


def _far_frequencies(w: Weights, shape: Shape) -> Array:
    """Of each head's pairs only the first share turns with the position."""
    plain = plain_frequencies(shape)
    if w.is_gguf:
        divisors = w.vector("rope_divisors")  # of pairs that do not turn: huge
        if not (divisors > 0).all():
            raise contradiction(w.source.path, "a rope divisor is not above 0")
        return np.asarray(plain / divisors)
    share = float(shape.rope_scaling.get("partial_rotary_factor", 1))
    turning = np.arange(len(plain)) < int(share * shape.head_width // 2)
    return np.asarray(plain * turning / float(shape.rope_scaling.get("factor", 1)))


def _weights(source: Source, g: Gemma4, shape: Shape) -> Weights:
    sizes = {
        **sizes_of(shape),
        "query_norm": (shape.head_width,),
        "key_norm": (shape.head_width,),
        "rope_divisors": (shape.head_width // 2,),
        "scalar": (1,),
        "table": (None, g.layers * g.extra_width),
        "context": (g.layers * g.extra_width, shape.width),
        "context_norm": (g.extra_width,),
        "extra_gate": (g.extra_width, shape.width),
        "extra_output": (shape.width, g.extra_width),
        "post_extra_norm": (shape.width,),
    }
    plain = isinstance(source, GgufFile) or names.HUGGING_FACE["embedding"] in source
    theirs = names.HUGGING_FACE if plain else names.WITH_TOWERS
    return Weights(source, names.GGUF, theirs, sizes, sensitive=SENSITIVE | {"table"})
