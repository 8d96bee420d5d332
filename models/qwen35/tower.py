"""The picture tower of Qwen3.5 and of Qwen3-VL.

A picture is patches; each gets a place of a learned table, interpolated, and turns by its row and
its column; all attend to all; neighbours then merge into one row of the text model's width. In
Qwen3-VL those of some layers before the last merge, too, into further parts of the row (deepstack).

Inputs: `patches` [N, 3*patch*patch], in blocks of those that merge, `corners` [N,4] of the table
and their `shares` [N,4], `cells` [N,2]: row and column. Output: `embedding` [N/merge^2, width], or
as many widths as the rows have parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flm.core.picture import CELLS, CORNERS, PATCHES, SHARES, Sight
from flm.graph import sight
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.family import Source
from flm.models.names import TOWER_GGUF, with_biases
from flm.models.shape import contradiction
from flm.models.tower import (
    Tower,
    TowerShape,
    colours,
    count_of,
    file_sizes,
    patch_matrix,
    processor,
    projector,
    shape_by,
    sizes_of,
)
from flm.models.weights import Weights

PROJECTOR = "qwen3vl_merger"  # what llama.cpp calls it
PLACEHOLDER = "<|image_pad|>"
PIXELS_MIN, PIXELS_MAX = 256 * 256, 4096 * 4096  # where no file says, as published

_BLOCK, _MERGER = "model.visual.blocks.{}.", "model.visual.merger."
_DEEP = "model.visual.deepstack_merger_list.{}."  # by their number
HUGGING_FACE = {
    "places": "model.visual.pos_embed.weight",
    **with_biases(
        {
            "patch": "model.visual.patch_embed.proj",
            "mixer_norm": _BLOCK + "norm1",
            "mixed": _BLOCK + "attn.qkv",
            "output": _BLOCK + "attn.proj",
            "mlp_norm": _BLOCK + "norm2",
            "up": _BLOCK + "mlp.linear_fc1",
            "down": _BLOCK + "mlp.linear_fc2",
            "norm": _MERGER + "norm",
            "merge_up": _MERGER + "linear_fc1",
            "merge_down": _MERGER + "linear_fc2",
            "deep_norm": _DEEP + "norm",
            "deep_up": _DEEP + "linear_fc1",
            "deep_down": _DEEP + "linear_fc2",
        }
    ),
}
GGUF = {
    **TOWER_GGUF,
    "patch_other": "v.patch_embd.weight.1",  # of the second frame
    **with_biases(
        {
            "merge_up": "mm.0",
            "merge_down": "mm.2",
            # by the layer that they follow
            "deep_norm": "v.deepstack.{}.norm",
            "deep_up": "v.deepstack.{}.fc1",
            "deep_down": "v.deepstack.{}.fc2",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class DeepShape(TowerShape):
    deep: tuple[int, ...] = ()  # layers whose outcome makes further parts of the rows

    @property
    def part_width(self) -> int:
        return self.out_width // (1 + len(self.deep))


def has(source: Source) -> bool:
    if isinstance(source, GgufFile):
        return projector(source) == PROJECTOR
    return isinstance(source.config.get("vision_config"), dict) and (
        HUGGING_FACE["patch"] in source
    )


def shape(source: Source) -> DeepShape:
    """Raises BadModelFile."""
    found = shape_by(source, _of_gguf, _of_folder)
    assert isinstance(found, DeepShape)
    if sorted({*found.deep, -1, found.layers}) != [-1, *found.deep, found.layers]:
        raise contradiction(source.path, f"a tower of {found.layers} layers with {found.deep}")
    return found


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> None:
    """The whole graph, of a folder or of a GGUF's mmproj file."""
    s = shape(source)
    w = Weights(source, GGUF, HUGGING_FACE, _sizes(s), sensitive=set(HUGGING_FACE))
    t = Tower(emitter, numerics, w, s)
    patches = emitter.input(PATCHES, "float32", ["N", 3 * s.sight.patch**2])
    x = t.add(t.linear(patches, patch_matrix(w, s)), _places(t))
    (x,) = emitter.op("Unsqueeze", [x, emitter.constant([0])])
    attend = t.turned(emitter.input(CELLS, "int64", ["N", 2]))
    deep = []
    for layer in range(s.layers):
        x = t.layer(x, layer, attend)
        if layer in s.deep:
            number = layer if w.is_gguf else s.deep.index(layer)
            merged = t.norm(t.cells(x), "deep_norm", number)
            bent = t.gelu(t.linear(merged, t.matrix("deep_up", number)), tanh=False)
            deep.append(t.linear(bent, t.matrix("deep_down", number)))
    t.merged(x, *deep)


def _places(t: Tower) -> str:
    """[N,width]."""
    corners = t.e.input(CORNERS, "int64", ["N", 4])
    shares = t.e.input(SHARES, "float32", ["N", 4])
    places = t.w.vector("places").reshape(-1, t.s.width)
    table = t.vector(t.w.name("places"), places)
    return t.e.call(sight.corners(), [table, corners, shares])[0]


def _sizes(s: DeepShape) -> dict[str, tuple[int | None, ...]]:
    return {
        **sizes_of(s),
        "places": (s.sight.side**2 * s.width,),
        "merge_up": (s.merged_width, s.merged_width),
        "merge_down": (s.part_width, s.merged_width),
        "deep_norm": (s.merged_width,),
        "deep_norm_bias": (s.merged_width,),
        "deep_up": (s.merged_width, s.merged_width),
        "deep_down": (s.part_width, s.merged_width),
    }


def _of_folder(source: SafetensorsFolder) -> DeepShape:
    config: Mapping[str, Any] = source.config["vision_config"]
    if int(config.get("temporal_patch_size", 2)) != 2:
        raise contradiction(source.path, "its tower's pictures are not of two frames")
    size = processor(source).get("size")
    said = size if isinstance(size, dict) else {}
    deep = tuple(int(layer) for layer in config.get("deepstack_visual_indexes") or ())
    return DeepShape(
        layers=int(config["depth"]),
        width=int(config["hidden_size"]),
        mlp_width=int(config["intermediate_size"]),
        heads=int(config["num_heads"]),
        out_width=int(config["out_hidden_size"]) * (1 + len(deep)),
        deep=deep,
        sight=_sight(
            source,
            patch=int(config["patch_size"]),
            merge=int(config["spatial_merge_size"]),
            side=round(int(config["num_position_embeddings"]) ** 0.5),
            pixels=(
                int(said.get("shortest_edge") or PIXELS_MIN),
                int(said.get("longest_edge") or PIXELS_MAX),
            ),
        ),
    )


def _of_gguf(source: GgufFile) -> DeepShape:
    names = (name.split(".") for name in source.tensors)
    deep = tuple(sorted({int(name[2]) for name in names if name[:2] == ["v", "deepstack"]}))
    sizes = file_sizes(source)
    places = source.vector(GGUF["places"]).size // max(1, sizes["width"])
    return DeepShape(
        **sizes | {"out_width": sizes["out_width"] * (1 + len(deep))},
        deep=deep,
        sight=_sight(
            source,
            patch=count_of(source, "patch_size"),
            merge=count_of(source, "spatial_merge_size", 2),
            side=round(places**0.5),
            pixels=(
                count_of(source, "image_min_pixels", PIXELS_MIN),
                count_of(source, "image_max_pixels", PIXELS_MAX),
            ),
        ),
    )


def _sight(source: Source, *, patch: int, merge: int, side: int, pixels: tuple[int, int]) -> Sight:
    mean, deviation = colours(source)
    return Sight(
        kind="cells",
        patch=patch,
        merge=merge,
        side=side,
        pixels_min=pixels[0],
        pixels_max=pixels[1],
        placeholder=PLACEHOLDER,
        mark=PLACEHOLDER,
        mean=mean,
        deviation=deviation,
        spread=True,
    )
