"""Llama: SmolLM2, Llama 3.x, DeepSeek-R1-Distill-Llama, Nanbeige. Attention, rows only."""

from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.llama import names
from flm.models.rope import half_split, rope_of
from flm.models.shape import shape_of
from flm.models.weights import Weights


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = shape_of(source)
    sizes = {**sizes_of(shape), "rope_divisors": (shape.rotary_width // 2,)}
    w = Weights(source, names.GGUF, names.HUGGING_FACE, sizes)
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)

    def mixer(x: str, layer: int) -> str:
        query = half_split(w, "query", layer, shape.heads)
        key = half_split(w, "key", layer, shape.kv_heads)
        return b.attention(x, layer, (query, key, w.matrix("value", layer)), heads, rotary)

    return emit_decoder(b, w, shape, mixer)
