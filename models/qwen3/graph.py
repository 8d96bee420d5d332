"""Qwen3, dense: as llama, with a norm of each head's query and key."""

from collections.abc import Mapping, Sequence

from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.qwen3 import names
from flm.models.rope import rope_of
from flm.models.shape import Shape, shape_of, within_window
from flm.models.weights import Weights


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = within_window(source, shape_of(source))
    w = weights_of(source, shape)
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    return emit_qwen3(b, w, shape)


def weights_of(
    source: Source, shape: Shape, hugging_face: Mapping[str, str] = names.HUGGING_FACE
) -> Weights:
    of_head = {"query_norm": (shape.head_width,), "key_norm": (shape.head_width,)}
    return Weights(source, names.GGUF, hugging_face, {**sizes_of(shape), **of_head})


def emit_qwen3(
    b: Blocks, w: Weights, shape: Shape, *, sections: Sequence[int] = (), deep: int = 0
) -> Emitted:
    """`sections` and `deep` are of a graph that sees: how a token's three positions turn it, and
    how many layers rows of pictures are added to besides.
    """
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)
    if b.sees:
        rotary = b.rotary_seen(rotary, sections, shape.rotary_width)

    def mixer(x: str, layer: int) -> str:
        query, key, value = (w.matrix(name, layer) for name in ("query", "key", "value"))
        norms = w.norm("query_norm", layer), w.norm("key_norm", layer)
        return b.attention(x, layer, (query, key, value), heads, rotary, norms)

    return emit_decoder(b, w, shape, mixer, deep=deep)
