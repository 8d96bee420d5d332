"""The picture tower of MiniCPM-V 4.6, which stands before the text part of Qwen3.5.

A view is patches; each gets a place of a learned table; all attend to all. Behind one of the layers
every four neighbours attend to each other and merge, behind the last layer every four of these
again, into one row of the text model's width. A model may be made without the first of the two.

Inputs: `patches` [N, 3*patch*patch], those that merge one after the other, and `buckets` [N]: which
place each has in the table. Output: `embedding` [N/merge^2, width].
"""

from collections.abc import Mapping
from typing import Any

from flm.core.picture import BUCKETS, PATCHES, Sight
from flm.devices.device import EMBEDDING
from flm.errors import UnsupportedModel
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.family import Source
from flm.models.names import SIGLIP, TOWER_GGUF, with_biases
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

MODEL_TYPE = PROJECTOR = "minicpmv4_6"
MERGED = 4  # patches, at either of the two places
WINDOW_LAYER = 6  # behind which the first is, where no file says
PIXELS, SLICES = 448, 9  # a side of a view, and how many slices at most, where no file says
PIXELS_MAX, SLICES_MAX = 4096, 64
PLACEHOLDER = "<|image_pad|>"

_TOWER, _MERGER = "model.vision_tower.", "model.merger.mlp.0."
_WINDOW = _TOWER + "vit_merger."
HUGGING_FACE = {name: _TOWER + theirs for name, theirs in SIGLIP.items()} | with_biases(
    {
        "window_norm": _WINDOW + "layer_norm1",
        "window_query": _WINDOW + "self_attn.q_proj",
        "window_key": _WINDOW + "self_attn.k_proj",
        "window_value": _WINDOW + "self_attn.v_proj",
        "window_output": _WINDOW + "self_attn.out_proj",
        "window_mlp_norm": _WINDOW + "pre_norm",
        "window_up": _WINDOW + "linear_1",
        "window_down": _WINDOW + "linear_2",
        "merge_norm": _MERGER + "pre_norm",
        "merge_up": _MERGER + "linear_1",
        "merge_down": _MERGER + "linear_2",
    }
)
GGUF = TOWER_GGUF | with_biases(
    {
        "window_norm": "v.vit_merger.ln1",
        "window_query": "v.vit_merger.attn_q",
        "window_key": "v.vit_merger.attn_k",
        "window_value": "v.vit_merger.attn_v",
        "window_output": "v.vit_merger.attn_out",
        "window_mlp_norm": "v.vit_merger.ds_ln",
        "window_up": "v.vit_merger.ds_ffn_up",
        "window_down": "v.vit_merger.ds_ffn_down",
        "merge_norm": "mm.input_norm",
        "merge_up": "mm.up",
        "merge_down": "mm.down",
    }
)


def has(source: Source) -> bool:
    if isinstance(source, GgufFile):
        return projector(source) == PROJECTOR
    return source.config.get("model_type") == MODEL_TYPE and HUGGING_FACE["places"] in source


def shape(source: Source) -> TowerShape:
    """Raises BadModelFile, or UnsupportedModel for one that merges otherwise."""
    return shape_by(source, _of_gguf, _of_folder)


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> None:
    """The whole graph, of a folder or of a GGUF's mmproj file."""
    s = shape(source)
    w = Weights(source, GGUF, HUGGING_FACE, _sizes(s), sensitive=set(HUGGING_FACE))
    t = Tower(emitter, numerics, w, s)
    patches = emitter.input(PATCHES, "float32", ["N", 3 * s.sight.patch**2])
    buckets = emitter.input(BUCKETS, "int64", ["N"])
    table = t.vector(w.name("places"), w.vector("places").reshape(-1, s.width))
    (at,) = emitter.op("Gather", [table, buckets])
    x = t.add(t.linear(patches, patch_matrix(w, s)), at)
    (x,) = emitter.op("Unsqueeze", [x, emitter.constant([0])])
    for layer in range(s.layers):
        x = t.layer(x, layer, t.attend)
        if layer == _window_layer(source, s):
            x = _window(t, x)
    (x,) = emitter.op("Reshape", [t.norm(x, "norm"), emitter.constant([-1, MERGED * s.width])])
    bent = t.gelu(t.linear(t.norm(x, "merge_norm"), t.matrix("merge_up")), tanh=False)
    t.linear(bent, t.matrix("merge_down"), output=EMBEDDING)
    emitter.output(EMBEDDING, "float32", ["M", s.out_width])


def _window(t: Tower, x: str) -> str:
    """x [1,N,width]: those that merge attend to each other, and become one of their width."""
    e, width = t.e, t.s.width
    with e.scope("window"):
        (x,) = e.op("Reshape", [x, e.constant([-1, MERGED, width])])
        parts = (t.matrix(f"window_{part}") for part in ("query", "key", "value"))
        attended = t.attend(t.linears(t.norm(x, "window_norm"), *parts), 0)
        x = t.add(x, t.linear(attended, t.matrix("window_output")))
        (mean,) = e.op("ReduceMean", [x, e.constant([1])], keepdims=0)
        (flat,) = e.op("Reshape", [x, e.constant([-1, MERGED * width])])
        up = t.linear(t.norm(flat, "window_mlp_norm"), t.matrix("window_up"))
        x = t.add(mean, t.linear(t.gelu(up, tanh=True), t.matrix("window_down")))
        return e.op("Unsqueeze", [x, e.constant([0])])[0]


def _window_layer(source: Source, s: TowerShape) -> int | None:
    """Behind which four merge for the first time. None: none."""
    if s.sight.merge == 2:
        return None
    if isinstance(source, GgufFile):
        said = source.metadata.get("clip.vision.wa_layer_indexes")
        at = said[0] if isinstance(said, list) and said else WINDOW_LAYER
    else:
        at = source.config.get("insert_layer_id", WINDOW_LAYER)
    if not isinstance(at, int) or not 0 <= at < s.layers:
        raise contradiction(source.path, f"patches merge behind layer {at} of {s.layers}")
    return at


def _sizes(s: TowerShape) -> dict[str, tuple[int | None, ...]]:
    merged = MERGED * s.width
    square = dict.fromkeys(("query", "key", "value", "output"), (s.width, s.width))
    return {
        **sizes_of(s),
        "places": (s.sight.side**2 * s.width,),
        **{f"window_{part}": size for part, size in square.items()},
        **dict.fromkeys(("window_norm", "window_norm_bias"), (s.width,)),
        **dict.fromkeys(("window_mlp_norm", "window_mlp_norm_bias"), (merged,)),
        "window_up": (MERGED * s.mlp_width, merged),
        "window_down": (s.width, MERGED * s.mlp_width),
        **dict.fromkeys(("merge_norm", "merge_norm_bias"), (merged,)),
        "merge_up": (merged, merged),
        "merge_down": (s.out_width, merged),
    }


def _of_folder(source: SafetensorsFolder) -> TowerShape:
    config: Mapping[str, Any] = source.config
    vision: Mapping[str, Any] = config["vision_config"]
    said = processor(source)
    wanted = {"merge_kernel_size": [2, 2], "merger_times": 1, "mrope_mode": "disabled"}
    found = {key: config.get(key) or usual for key, usual in wanted.items()}
    activation = vision.get("hidden_act", "gelu_pytorch_tanh")
    if found != wanted or activation != "gelu_pytorch_tanh":
        raise UnsupportedModel(
            f"{source.path} has a tower with {found} and {activation}, which flm does not build",
            fix="take a MiniCPM-V 4.6 as published",
        )
    modes = {each["downsample_mode"] for each in (config, said) if each.get("downsample_mode")}
    if len(modes) > 1:
        raise contradiction(source.path, f"pictures merge by {sorted(modes)}")
    patch = int(vision["patch_size"])
    return TowerShape(
        layers=int(vision["num_hidden_layers"]),
        width=int(vision["hidden_size"]),
        mlp_width=int(vision["intermediate_size"]),
        heads=int(vision["num_attention_heads"]),
        out_width=int(config["text_config"]["hidden_size"]),
        epsilon=float(vision.get("layer_norm_eps", 1e-6)),
        sight=_sight(
            source,
            patch=patch,
            merge={"16x": 4, "4x": 2}[next(iter(modes), "16x")],
            side=int(vision["image_size"]) // patch,
            pixels=int(said.get("scale_resolution", PIXELS)),
            slices=int(said.get("max_slice_nums", SLICES)) if said.get("slice_mode", True) else 1,
            numbered=bool(said.get("use_image_id", True)),
        ),
    )


def _of_gguf(source: GgufFile) -> TowerShape:
    sizes = file_sizes(source)
    return TowerShape(
        **sizes,
        sight=_sight(
            source,
            patch=count_of(source, "patch_size"),
            merge=count_of(source, "projector.scale_factor", 4),
            side=round((source.vector(GGUF["places"]).size // sizes["width"]) ** 0.5),
            pixels=count_of(source, "image_size", PIXELS),
            slices=SLICES,
            numbered=True,
        ),
    )


def _sight(
    source: Source, *, patch: int, merge: int, side: int, pixels: int, slices: int, numbered: bool
) -> Sight:
    if merge not in (2, 4) or not 0 < pixels <= PIXELS_MAX or not 0 < slices <= SLICES_MAX:
        raise contradiction(source.path, f"views of {pixels}, {slices} of them, merged by {merge}")
    mean, deviation = colours(source)
    return Sight(
        kind="slices",
        patch=patch,
        merge=merge,
        side=side,
        pixels_min=0,
        pixels_max=pixels**2,
        placeholder=PLACEHOLDER,
        mark=PLACEHOLDER,
        before="<image>",
        after="</image>",
        mean=mean,
        deviation=deviation,
        slices=slices,
        numbered=numbered,
    )
