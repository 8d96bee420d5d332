"""SmolLM3: as llama, but every fourth layer has no rotary positions (NoPE)."""

from typing import Any

from flm.errors import BadModelFile
from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.rope import half_split, rope_of
from flm.models.shape import shape_of, within_window
from flm.models.smollm3 import names
from flm.models.weights import Weights

INTERVAL = 4  # of layers without positions; GGUF has no key for it


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = within_window(source, shape_of(source))
    turned = _turned(source, shape.layers)
    w = Weights(source, names.GGUF, names.HUGGING_FACE, sizes_of(shape))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)

    def mixer(x: str, layer: int) -> str:
        query = half_split(w, "query", layer, shape.heads)
        key = half_split(w, "key", layer, shape.kv_heads)
        parts = (query, key, w.matrix("value", layer))
        return b.attention(x, layer, parts, heads, rotary if turned[layer] else None)

    return emit_decoder(b, w, shape, mixer)


def _turned(source: Source, layers: int) -> list[bool]:
    """Whether each layer's queries and keys turn with the position."""
    listed: Any = None
    interval: Any = INTERVAL
    if not isinstance(source, GgufFile):
        listed = source.config.get("no_rope_layers")  # 1 where, despite the name, they do turn
        interval = source.config.get("no_rope_layer_interval", INTERVAL)
    if listed is None and isinstance(interval, int) and interval > 0:
        listed = [(i + 1) % interval != 0 for i in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers:
        raise BadModelFile(f"{source.path}: no_rope_layers does not list {layers} layers")
    return [bool(layer) for layer in listed]
