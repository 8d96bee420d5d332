"""LFM2 and LFM2.5: most layers are short gated convolutions over time, others attend as Qwen3's do.

What a convolution carries from token to token, its last inputs, is state.
"""

from dataclasses import dataclass
from typing import Any

from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.blocks import Matrix
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.lfm2 import names
from flm.models.rope import rope_of
from flm.models.shape import Shape, contradiction, shape_of
from flm.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Hybrid:
    shape: Shape
    taps: int  # of each convolution
    attends: tuple[bool, ...]  # by layer


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    hybrid = _hybrid(source)
    shape = hybrid.shape
    tables = names.GGUF, names.HUGGING_FACE
    w = Weights(source, *tables, _sizes(hybrid), sensitive=names.SENSITIVE)
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)

    def mixer(x: str, layer: int) -> str:
        if not hybrid.attends[layer]:
            return _convolution(b, w, hybrid, layer, x)
        query, key, value = (w.matrix(name, layer) for name in ("query", "key", "value"))
        norms = w.norm("query_norm", layer), w.norm("key_norm", layer)
        return b.attention(x, layer, (query, key, value), heads, rotary, norms)

    def output(layer: int) -> Matrix:
        return w.matrix("output" if hybrid.attends[layer] else "convolved_output", layer)

    return emit_decoder(b, w, shape, mixer, output=output)


def _convolution(b: Blocks, w: Weights, hybrid: Hybrid, layer: int, x: str) -> str:
    """Gated before and after."""
    before, after, x = b.split(b.linear(x, w.matrix("mixed", layer)), 3)
    tail = b.state(f"layers.{layer}.convolution", (hybrid.taps - 1, hybrid.shape.width))
    taps = w.vector("convolution", layer).reshape(hybrid.shape.width, hybrid.taps)
    (x,) = b.e.op("Mul", [before, x])
    x = b.causal_conv(x, tail, w.name("convolution", layer), taps, silu=False)
    return b.e.op("Mul", [after, x])[0]


def _sizes(hybrid: Hybrid) -> dict[str, tuple[int | None, ...]]:
    s = hybrid.shape
    return {
        **sizes_of(s),
        "query_norm": (s.head_width,),
        "key_norm": (s.head_width,),
        "mixed": (3 * s.width, s.width),
        "convolution": (s.width * hybrid.taps,),
        "convolved_output": (s.width, s.width),
    }


def _hybrid(source: Source) -> Hybrid:
    if isinstance(source, GgufFile):
        shape, taps = shape_of(source), int(source.number("lfm2.shortconv.l_cache"))
        listed = source.metadata.get("lfm2.attention.head_count_kv")
        attends = [count > 0 for count in listed] if isinstance(listed, list) else []
    else:
        shape, taps, attends = _from_config(source)
    if len(attends) != shape.layers or not 2 <= taps <= 64:
        raise contradiction(
            source.path, f"{shape.layers} layers, kinds of {len(attends)}, {taps} taps"
        )
    return Hybrid(shape, taps, tuple(attends))


def _from_config(source: Source) -> tuple[Shape, int, list[bool]]:
    assert not isinstance(source, GgufFile)
    config = source.config
    if config.get("conv_bias"):
        raise UnsupportedModel(
            f"{source.path}: convolutions with biases are not built", fix="take another model"
        )
    try:
        renamed = {"rms_norm_eps": config["norm_eps"], "intermediate_size": _mlp_width(config)}
        shape = shape_of(source, {**config, **renamed})
        if kinds := config.get("layer_types"):
            attends = [kind == "full_attention" for kind in kinds]
        else:
            attends = [layer in config["full_attn_idxs"] for layer in range(shape.layers)]
        return shape, int(config["conv_L_cache"]), attends
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error


def _mlp_width(config: dict[str, Any]) -> int:
    """Two thirds of what is stated, scaled and rounded up, where the file asks for that."""
    width = int(config.get("block_ff_dim") or config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    if (factor := config.get("block_ffn_dim_multiplier", 1.0)) is not None:
        width = int(float(factor) * width)
    multiple = int(config.get("block_multiple_of", 256))
    return multiple * -(-width // multiple)
