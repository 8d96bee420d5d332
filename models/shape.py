"""The sizes of a decoder, as its file states them, checked before anything is built from them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder

LAYERS_MAX, WIDTH_MAX, CONTEXT_LENGTH_MAX = 1024, 2**18, 2**24


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_width: int
    epsilon: float
    context_length: int
    rope_base: float
    rope_scaling: dict[str, Any]  # by Hugging Face's names
    rotary_width: int  # of the head, how much turns with the position


def contradiction(path: Path, what: str) -> BadModelFile:
    """For sizes in one file that cannot belong to one model."""
    return BadModelFile(
        f"{path}: {what}",
        fix="the file contradicts itself; get another conversion of this model",
    )


def shape_of(
    source: GgufFile | SafetensorsFolder,
    config: Mapping[str, Any] | None = None,
    *,
    is_mixture: bool = False,
) -> Shape:
    """Of a decoder whose file names its sizes as most do; `config` stands for a folder's
    config.json where that holds them elsewhere. Raises BadModelFile; UnsupportedModel for a mixture
    of experts, unless the family is one.
    """
    if isinstance(source, GgufFile):
        shape = _from_gguf(source)
    else:
        shape = _from_config(source.config if config is None else config)
    if not is_mixture and _is_mixture(source):
        raise UnsupportedModel(f"{source.path} is a mixture of experts", fix="take a dense model")
    check_shape(source.path, shape)
    return shape


def text_config(source: GgufFile | SafetensorsFolder) -> Mapping[str, Any] | None:
    """Of a folder, the part of its config.json that is about text."""
    if isinstance(source, GgufFile):
        return None
    text: Any = source.config.get("text_config")
    return text if isinstance(text, dict) else source.config


def within_window(
    source: GgufFile | SafetensorsFolder,
    shape: Shape,
    config: Mapping[str, Any] | None = None,
    *,
    slides: bool = False,
) -> Shape:
    """A context no longer than the window of its attention, within which nothing is cut off;
    `config` as for shape_of; `slides` is whether a folder's attention has one where that does not
    say.
    """
    if isinstance(source, GgufFile):
        architecture = source.text("general.architecture")
        window = source.number(f"{architecture}.attention.sliding_window", 0)
    else:
        config = source.config if config is None else config
        slides = config.get("use_sliding_window", slides)
        if isinstance(kinds := config.get("layer_types"), list):
            slides = slides and "sliding_attention" in kinds
        window = (config.get("sliding_window") or 0) if slides else 0
    if not isinstance(window, int) or window < 0:
        raise contradiction(source.path, f"its attention's window is {window!r}")
    return replace(shape, context_length=min(shape.context_length, window or shape.context_length))


def _is_mixture(source: GgufFile | SafetensorsFolder) -> bool:
    if isinstance(source, GgufFile):
        architecture = source.text("general.architecture")
        return bool(source.metadata.get(f"{architecture}.expert_count"))
    return bool(source.config.get("num_experts") or source.config.get("num_local_experts"))


def check_shape(path: Path, shape: Shape) -> None:
    """Raises BadModelFile naming the size that cannot be."""
    limits = {
        "layers": LAYERS_MAX,
        "width": WIDTH_MAX,
        "mlp_width": WIDTH_MAX,
        "heads": WIDTH_MAX,
        "kv_heads": shape.heads,
        "head_width": 1024,
        "context_length": CONTEXT_LENGTH_MAX,
        "rotary_width": shape.head_width,
    }
    for name, most in limits.items():
        value = getattr(shape, name)
        if not 0 < value <= most:
            raise contradiction(path, f"{name} is {value}, between 1 and {most} was expected")
    if shape.heads % shape.kv_heads or shape.head_width % 2 or shape.rotary_width % 2:
        raise contradiction(
            path, f"{shape.heads} heads of {shape.head_width} over {shape.kv_heads} kv heads"
        )
    if not 0 < shape.epsilon < 1 or not 1 < shape.rope_base < 1e12:
        raise contradiction(path, f"norm epsilon {shape.epsilon}, rope base {shape.rope_base}")


def _from_gguf(source: GgufFile) -> Shape:
    architecture = source.text("general.architecture")

    def number(key: str, default: float | None = None) -> float:
        return source.number(f"{architecture}.{key}", default)

    width, heads = int(number("embedding_length")), int(number("attention.head_count"))
    head_width = int(number("attention.key_length", width // heads if heads else 0))
    wide = source.metadata.get(f"{architecture}.expert_feed_forward_length")
    return Shape(
        layers=int(number("block_count")),
        width=width,
        mlp_width=int(number("feed_forward_length", wide)),
        heads=heads,
        kv_heads=_kv_heads(source, f"{architecture}.attention.head_count_kv", heads),
        head_width=head_width,
        epsilon=number("attention.layer_norm_rms_epsilon"),
        context_length=int(number("context_length")),
        rope_base=number("rope.freq_base", 10000.0),
        rope_scaling=_gguf_scaling(source, architecture),
        rotary_width=int(number("rope.dimension_count", head_width)),
    )


def _kv_heads(source: GgufFile, key: str, heads: int) -> int:
    """Of the layers that attend: they are listed by layer where some do not, and have 0."""
    listed = source.metadata.get(key)
    if not isinstance(listed, list):
        return int(source.number(key, heads))
    counts = {count for count in listed if count != 0}
    if len(counts) != 1 or not all(isinstance(count, int) for count in counts):
        raise contradiction(source.path, f"its layers have {listed} kv heads")
    return int(counts.pop())


def _gguf_scaling(source: GgufFile, architecture: str) -> dict[str, Any]:
    kind = source.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return {}
    keys = {
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
        "attn_factor": "prefactor",  # GGUF's own: what YaRN's factor is multiplied by
    }
    present = {
        name: source.number(f"{architecture}.rope.scaling.{key}")
        for key, name in keys.items()
        if f"{architecture}.rope.scaling.{key}" in source.metadata
    }
    return {"type": kind, **present}


def _from_config(config: Mapping[str, Any]) -> Shape:
    try:
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        heads, width = config["num_attention_heads"], config["hidden_size"]
        head_width = int(config.get("head_dim") or width // heads)
        partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        return Shape(
            layers=int(config["num_hidden_layers"]),
            width=int(width),
            mlp_width=int(config["intermediate_size"]),
            heads=int(heads),
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_width=head_width,
            epsilon=float(config["rms_norm_eps"]),
            context_length=int(config["max_position_embeddings"]),
            rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rope_scaling=dict(rope),
            rotary_width=int(head_width * float(partial)),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error
