"""The picture tower of Qwen2.5-VL.

A picture is patches, which turn by their row and their column. At a few layers all attend to all,
at the others those of a window to one another; neighbours then merge into one row of the text
model's width.

Inputs: `patches` [N, 3*patch*patch], in blocks of those that merge, `cells` [N,2]: row and column;
`windows` [W,S], `counts` [W] and `seats` [N]: which patches are in each window, and where each is.
Output: `embedding` [N/merge^2, width].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flm.core.picture import CELLS, COUNTS, PATCHES, SEATS, WINDOWS, Sight
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

PROJECTOR = "qwen2.5vl_merger"  # what llama.cpp calls it
PLACEHOLDER = "<|image_pad|>"
PIXELS_MIN, PIXELS_MAX = 56 * 56, 16384 * 28 * 28  # where no file says, as published
WINDOW_PIXELS = 112
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

_BLOCK, _MERGER = "visual.blocks.{}.", "visual.merger."
HUGGING_FACE = {
    "patch": "visual.patch_embed.proj.weight",
    "mixer_norm": _BLOCK + "norm1.weight",
    "mlp_norm": _BLOCK + "norm2.weight",
    "norm": _MERGER + "ln_q.weight",
    **with_biases(
        {
            "mixed": _BLOCK + "attn.qkv",
            "output": _BLOCK + "attn.proj",
            "gate": _BLOCK + "mlp.gate_proj",
            "up": _BLOCK + "mlp.up_proj",
            "down": _BLOCK + "mlp.down_proj",
            "merge_up": _MERGER + "mlp.0",
            "merge_down": _MERGER + "mlp.2",
        }
    ),
}
MOVED = {name: f"model.{theirs}" for name, theirs in HUGGING_FACE.items()}  # by transformers 5
GGUF = {
    **TOWER_GGUF,
    "patch_other": "v.patch_embd.weight.1",  # of the second frame
    **with_biases({"merge_up": "mm.0", "merge_down": "mm.2"}),
}


@dataclass(frozen=True, slots=True)
class WindowShape(TowerShape):
    is_full: tuple[bool, ...] = ()  # by layer, whether all attend to all


def has(source: Source) -> bool:
    if isinstance(source, GgufFile):
        return projector(source) == PROJECTOR
    return isinstance(source.config.get("vision_config"), dict) and (
        HUGGING_FACE["patch"] in source or MOVED["patch"] in source
    )


def shape(source: Source) -> TowerShape:
    """Raises BadModelFile."""
    return shape_by(source, _of_gguf, _of_folder)


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> None:
    """The whole graph, of a folder or of a GGUF's mmproj file."""
    s = shape(source)
    assert isinstance(s, WindowShape)
    theirs = HUGGING_FACE if HUGGING_FACE["patch"] in source else MOVED
    w = Weights(source, GGUF, theirs, _sizes(s), sensitive=set(theirs))
    t = Tower(emitter, numerics, w, s)
    x = t.linear(emitter.input(PATCHES, "float32", ["N", 3 * s.sight.patch**2]), patch_matrix(w, s))
    (x,) = emitter.op("Unsqueeze", [x, emitter.constant([0])])
    windows = (
        emitter.input(WINDOWS, "int64", ["W", "S"]),
        emitter.input(COUNTS, "int32", ["W"]),
        emitter.input(SEATS, "int64", ["N"]),
    )
    attend = t.turned(emitter.input(CELLS, "int64", ["N", 2]), windows, s.is_full)
    for layer in range(s.layers):
        x = t.layer(x, layer, attend)
    t.merged(x)


def _sizes(s: TowerShape) -> dict[str, tuple[int | None, ...]]:
    return {
        **sizes_of(s),
        "gate": (s.mlp_width, s.width),
        "merge_up": (s.merged_width, s.merged_width),
        "merge_down": (s.out_width, s.merged_width),
    }


def _of_folder(source: SafetensorsFolder) -> TowerShape:
    config: Mapping[str, Any] = source.config["vision_config"]
    if int(config.get("temporal_patch_size", 2)) != 2:
        raise contradiction(source.path, "its tower's pictures are not of two frames")
    said = processor(source)
    size = said.get("size")
    bounds = {**said, **(size if isinstance(size, dict) else {})}
    layers, full = int(config["depth"]), config["fullatt_block_indexes"]
    least = bounds.get("min_pixels") or bounds.get("shortest_edge") or PIXELS_MIN
    most = bounds.get("max_pixels") or bounds.get("longest_edge") or PIXELS_MAX
    return WindowShape(
        layers=layers,
        width=int(config["hidden_size"]),
        mlp_width=int(config["intermediate_size"]),
        heads=int(config["num_heads"]),
        out_width=int(config["out_hidden_size"]),
        sight=_sight(
            source,
            patch=int(config["patch_size"]),
            merge=int(config["spatial_merge_size"]),
            window=int(config.get("window_size", WINDOW_PIXELS)),
            pixels=(int(least), int(most)),
        ),
        rms=True,
        gated=True,
        is_full=tuple(layer in full for layer in range(layers)),
    )


def _of_gguf(source: GgufFile) -> TowerShape:
    sizes, every = file_sizes(source), count_of(source, "n_wa_pattern")
    return WindowShape(
        **sizes,
        sight=_sight(
            source,
            patch=count_of(source, "patch_size"),
            merge=count_of(source, "spatial_merge_size", 2),
            window=count_of(source, "window_size", WINDOW_PIXELS),
            pixels=(
                count_of(source, "image_min_pixels", PIXELS_MIN),
                count_of(source, "image_max_pixels", PIXELS_MAX),
            ),
        ),
        rms=True,
        gated=True,
        is_full=tuple((layer + 1) % every == 0 for layer in range(sizes["layers"])),
    )


def _sight(
    source: Source, *, patch: int, merge: int, window: int, pixels: tuple[int, int]
) -> Sight:
    """Windows are of whole cells."""
    mean, deviation = colours(source, MEAN, DEVIATION)
    return Sight(
        kind="windows",
        patch=patch,
        merge=merge,
        side=window // patch // merge * merge,
        pixels_min=pixels[0],
        pixels_max=pixels[1],
        placeholder=PLACEHOLDER,
        mark=PLACEHOLDER,
        spread=True,
        mean=mean,
        deviation=deviation,
    )
