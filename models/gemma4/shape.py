"""The sizes of Gemma 4, which differ by layer, as its file states them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.gguf import GgufFile
from flm.models.family import Source
from flm.models.shape import LAYERS_MAX, Shape, check_shape, contradiction

NEAR, FAR = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Gemma4:
    """From layer `first_shared` on, none has keys and values of its own: each attends to the rows
    of the last layer of its kind before.
    """

    shapes: tuple[Shape, ...]  # by layer
    is_near: tuple[bool, ...]  # by layer: attends within the window
    first_shared: int
    window: int  # tokens
    extra_width: int  # of a token's second embedding, for each layer
    cap: float | None  # of the logits

    @property
    def layers(self) -> int:
        return len(self.shapes)

    def owner(self, layer: int) -> int:
        """The layer whose rows `layer` attends to."""
        alike = (i for i in range(self.first_shared) if self.is_near[i] == self.is_near[layer])
        return layer if layer < self.first_shared else max(alike)


def gemma4_of(source: Source) -> Gemma4:
    """Raises BadModelFile, or UnsupportedModel for the kinds without embeddings by layer."""
    if isinstance(source, GgufFile):
        found = _from_gguf(source)
    else:
        try:
            found = _from_config(source.config.get("text_config") or source.config)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise BadModelFile(f"config.json: {error!r}") from error
    if not found.extra_width:
        raise UnsupportedModel(
            f"{source.path} is a Gemma 4 without embeddings by layer, which flm does not build",
            fix="take gemma4-it:e2b or gemma4-it:e4b",
        )
    if not 0 < found.layers == len(found.is_near) or not 0 < found.first_shared <= found.layers:
        raise contradiction(
            source.path,
            f"{found.layers} layers, kinds of {len(found.is_near)}, "
            f"rows shared from layer {found.first_shared} on",
        )
    for shape in found.shapes:
        check_shape(source.path, shape)
    if set(found.is_near) != set(found.is_near[: found.first_shared]):
        raise contradiction(source.path, "its last layers attend to rows that no layer stores")
    sizes = (found.window, found.extra_width, found.cap or 1)
    if not all(0 < size < 2**20 for size in sizes):
        raise contradiction(source.path, f"window, width by layer and cap of logits are {sizes}")
    return found


def _from_gguf(source: GgufFile) -> Gemma4:
    def number(key: str, default: float | None = None) -> float:
        return source.number(f"gemma4.{key}", default)

    layers = int(number("block_count"))

    def by_layer(key: str) -> list[int]:
        """What the file states once, or for each layer."""
        found = source.metadata.get(f"gemma4.{key}")
        if not isinstance(found, list):
            found = [int(number(key))] * min(layers, LAYERS_MAX)
        if len(found) != layers or not all(isinstance(one, int) for one in found):
            raise contradiction(source.path, f"gemma4.{key} is {found} for {layers} layers")
        return found

    is_near = tuple(map(bool, by_layer("attention.sliding_window_pattern")))
    mlp_widths, kv_heads = by_layer("feed_forward_length"), by_layer("attention.head_count_kv")

    def shape(layer: int) -> Shape:
        of_near = "_swa" if is_near[layer] else ""
        head_width = int(number(f"attention.key_length{of_near}"))
        return Shape(
            layers=layers,
            width=int(number("embedding_length")),
            mlp_width=mlp_widths[layer],
            heads=int(number("attention.head_count")),
            kv_heads=kv_heads[layer],
            head_width=head_width,
            epsilon=number("attention.layer_norm_rms_epsilon"),
            context_length=int(number("context_length")),
            rope_base=number(f"rope.freq_base{of_near}", 1e4 if of_near else 1e6),
            rope_scaling={},
            rotary_width=int(number(f"rope.dimension_count{of_near}", head_width)),
        )

    cap = number("final_logit_softcapping", 0)
    return Gemma4(
        shapes=tuple(map(shape, range(layers))),
        is_near=is_near,
        first_shared=layers - int(number("attention.shared_kv_layers", 0)),
        window=int(number("attention.sliding_window")),
        extra_width=int(number("embedding_length_per_layer_input", 0)),
        cap=cap or None,
    )


def _from_config(text: Mapping[str, Any]) -> Gemma4:
    kinds = text["layer_types"]
    layers, rope = int(text["num_hidden_layers"]), text["rope_parameters"]
    first_shared = layers - int(text["num_kv_shared_layers"])

    def shape(layer: int) -> Shape:
        far = kinds[layer] == FAR
        head_width = int(text["global_head_dim"] if far else text["head_dim"])
        wide = layer >= first_shared and text.get("use_double_wide_mlp")
        return Shape(
            layers=layers,
            width=int(text["hidden_size"]),
            mlp_width=int(text["intermediate_size"]) * (2 if wide else 1),
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            head_width=head_width,
            epsilon=float(text["rms_norm_eps"]),
            context_length=int(text["max_position_embeddings"]),
            rope_base=float(rope[kinds[layer]]["rope_theta"]),
            rope_scaling=dict(rope[kinds[layer]]),
            rotary_width=head_width,
        )

    return Gemma4(
        shapes=tuple(map(shape, range(min(layers, len(kinds))))),
        is_near=tuple(kind == NEAR for kind in kinds),
        first_shared=first_shared,
        window=int(text["sliding_window"]),
        extra_width=int(text.get("hidden_size_per_layer_input") or 0),
        cap=float(text.get("final_logit_softcapping") or 0) or None,
    )
