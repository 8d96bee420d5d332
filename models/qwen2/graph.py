"""Qwen2.5, dense: as llama, with biases of query, key and value."""

from flm.graph.blocks import Blocks, Heads, Rotary
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.qwen2 import names
from flm.models.rope import rope_of
from flm.models.shape import Shape, shape_of, within_window
from flm.models.weights import Weights


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = within_window(source, shape_of(source))
    w = Weights(source, names.GGUF, names.HUGGING_FACE, sizes_of(shape))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)
    return emit_qwen2(b, w, shape, rotary)


def emit_qwen2(b: Blocks, w: Weights, shape: Shape, rotary: Rotary) -> Emitted:
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)

    def mixer(x: str, layer: int) -> str:
        parts = (w.matrix("query", layer), w.matrix("key", layer), w.matrix("value", layer))
        return b.attention(x, layer, parts, heads, rotary)

    return emit_decoder(b, w, shape, mixer)
