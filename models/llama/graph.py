"""Llama: SmolLM2, Llama 3.x, DeepSeek-R1-Distill-Llama. Attention and SwiGLU, rows only."""

from typing import Any

import numpy as np

from flm.devices.device import Array
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.blocks import Blocks, Heads, Numerics
from flm.graph.emit import Emitter
from flm.graph.weights.blocks import Matrix
from flm.graph.weights.gguf import GgufFile
from flm.memory.layout import MemoryLayout
from flm.models.family import Emitted, Source
from flm.models.llama import names
from flm.models.shape import Shape, check_shape
from flm.models.weights import Weights


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = _from_gguf(source) if isinstance(source, GgufFile) else _from_config(source.config)
    check_shape(source.path, shape)
    w = Weights(source, names.GGUF, names.HUGGING_FACE, _sizes(shape))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    heads = Heads(shape.heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
    rotary = b.rotary(_frequencies(w, shape), shape.context_length)

    residual = b.embedding(w.matrix("embedding"))
    with b.layer(0):
        x = b.rms_norm(residual, *_norm(w, "attention_norm", 0))
    for i in range(shape.layers):
        with b.layer(i):
            qkv = (_rotated(w, "query", i, shape.heads), _rotated(w, "key", i, shape.kv_heads))
            x = b.attention(x, i, (*qkv, w.matrix("value", i)), heads, rotary)
            if i == shape.layers - 1:
                x, residual = b.last(x), b.last(residual)
            x = b.linear(x, w.matrix("output", i))
            x, residual = b.add_rms_norm(x, residual, *_norm(w, "mlp_norm", i))
            gate, up = b.linears(x, w.matrix("gate", i), w.matrix("up", i))
            x = b.linear(b.swiglu(gate, up), w.matrix("down", i))
            last = i == shape.layers - 1
            following = _norm(w, "norm") if last else _norm(w, "attention_norm", i + 1)
            x, residual = b.add_rms_norm(x, residual, *following)
    b.head(x, w.matrix("head" if w.has("head") else "embedding"))
    vocabulary = w.matrix("embedding").shape[0]
    return Emitted(MemoryLayout(tuple(b.memory)), vocabulary, shape.context_length)


def _sizes(s: Shape) -> dict[str, tuple[int | None, ...]]:
    wide, narrow = s.heads * s.head_width, s.kv_heads * s.head_width
    return {
        "embedding": (None, s.width),
        "head": (None, s.width),
        "norm": (s.width,),
        "rope_divisors": (s.head_width // 2,),
        "attention_norm": (s.width,),
        "query": (wide, s.width),
        "key": (narrow, s.width),
        "value": (narrow, s.width),
        "output": (s.width, wide),
        "mlp_norm": (s.width,),
        "gate": (s.mlp_width, s.width),
        "up": (s.mlp_width, s.width),
        "down": (s.width, s.mlp_width),
    }


def _rotated(w: Weights, name: str, layer: int, heads: int) -> Matrix:
    """Query or key rows in half-split rotary order; GGUF interleaves the two halves."""
    matrix = w.matrix(name, layer)
    if not w.is_gguf:
        return matrix
    order = np.arange(matrix.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return matrix.reordered(order)


def _norm(w: Weights, name: str, layer: int = 0) -> tuple[str, Array]:
    """(tensor name, weight [width])."""
    return w.name(name, layer), w.vector(name, layer)


def _frequencies(w: Weights, s: Shape) -> Array:
    """Radians a position, [head_width / 2], Llama 3's scaling applied."""
    plain: Array = s.rope_base ** (-np.arange(0, s.head_width, 2) / s.head_width)
    if w.has("rope_divisors"):
        with np.errstate(divide="ignore"):
            slowed = np.asarray(plain / w.vector("rope_divisors"))
    else:
        slowed = _scaled(plain, s.rope_scaling)
    if not ((slowed > 0) & np.isfinite(slowed)).all():
        raise BadModelFile(f"{w.source.path}: rope scaling gives angles that are not numbers")
    return slowed


def _scaled(frequencies: Array, scaling: dict[str, Any]) -> Array:
    """Llama 3.1's rule (transformers, modeling_rope_utils): long waves slowed by `factor`."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(f"rope scaling {kind!r} is not built", fix="take another model")
    keys = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    try:
        factor = np.float64(scaling["factor"])
        others = [np.float64(scaling[key]) for key in keys if kind == "llama3"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadModelFile(f"rope scaling {kind} has no number for {error}") from error
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "linear":
            return np.asarray(frequencies / factor)
        original, low, high = others
        turns = original * frequencies / (2 * np.pi)
        share = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray(frequencies * (share + (1 - share) / factor))


def _from_gguf(source: GgufFile) -> Shape:
    def number(key: str, default: float | None = None) -> float:
        return source.number(f"llama.{key}", default)

    width, heads = int(number("embedding_length")), int(number("attention.head_count"))
    if source.metadata.get("llama.expert_count"):
        raise UnsupportedModel(f"{source.path} is a mixture of experts", fix="take a dense model")
    kind = source.metadata.get("llama.rope.scaling.type", "none")
    scaling = {} if kind == "none" else {"type": kind, "factor": number("rope.scaling.factor")}
    return Shape(
        layers=int(number("block_count")),
        width=width,
        mlp_width=int(number("feed_forward_length")),
        heads=heads,
        kv_heads=int(number("attention.head_count_kv", heads)),
        head_width=int(number("attention.key_length", width // heads if heads else 0)),
        epsilon=number("attention.layer_norm_rms_epsilon"),
        context_length=int(number("context_length")),
        rope_base=number("rope.freq_base", 10000.0),
        rope_scaling=scaling,
    )


def _from_config(config: dict[str, Any]) -> Shape:
    try:
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        heads, width = config["num_attention_heads"], config["hidden_size"]
        return Shape(
            layers=int(config["num_hidden_layers"]),
            width=int(width),
            mlp_width=int(config["intermediate_size"]),
            heads=int(heads),
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_width=int(config.get("head_dim") or width // heads),
            epsilon=float(config["rms_norm_eps"]),
            context_length=int(config["max_position_embeddings"]),
            rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rope_scaling=dict(rope),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error
