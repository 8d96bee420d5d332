"""Qwen3, dense: as llama, with a norm of each head's query and key."""

from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.qwen3 import names
from flm.models.rope import rope_of
from flm.models.shape import shape_of, within_window
from flm.models.weights import Weights


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = within_window(source, shape_of(source))
    of_head = {"query_norm": (shape.head_width,), "key_norm": (shape.head_width,)}
    w = Weights(source, names.GGUF, names.HUGGING_FACE, {**sizes_of(shape), **of_head})
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)

    def mixer(x: str, layer: int) -> str:
        query, key, value = (w.matrix(name, layer) for name in ("query", "key", "value"))
        norms = w.norm("query_norm", layer), w.norm("key_norm", layer)
        return b.attention(x, layer, (query, key, value), heads, rotary, norms)

    return emit_decoder(b, w, shape, mixer)
