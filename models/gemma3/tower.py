"""The picture tower of Gemma 3 (SigLIP), and what makes rows of the text model's width of it.

A picture is one square of patches; each gets a place of a learned table; all attend to all. Blocks
of neighbours become their mean, that is normed and projected.

Input: `patches` [N, 3*patch*patch], row by row. Output: `embedding` [N/merge^2, width].
"""

from collections.abc import Mapping
from math import isqrt
from typing import Any

import numpy as np

from flm.core.picture import PATCHES, Sight
from flm.devices.device import EMBEDDING
from flm.errors import UnsupportedModel
from flm.graph import functions
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.blocks import dense
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.family import Source
from flm.models.names import SIGLIP, TOWER_GGUF
from flm.models.shape import contradiction
from flm.models.tower import (
    Tower,
    TowerShape,
    colours,
    count_of,
    file_sizes,
    patch_matrix,
    projector,
    shape_by,
    sizes_of,
)
from flm.models.weights import Weights

PROJECTOR = "gemma3"  # what llama.cpp calls it
TOKENS = 256  # of a picture, where no config.json says
POOLED = 4  # patches a side that become one, where no GGUF file says
# Of the vocabulary, and in no text: the published token for a picture's own is not in every file.
MARK = "<unused0>"
PLACEHOLDER, END = "<start_of_image>", "<end_of_image>"

BEHIND = {
    "merged_norm": "mm_soft_emb_norm.weight",
    "projection": "mm_input_projection_weight",
}
# Folders have any of these before such names: as published, and as transformers calls its own.
PREFIXES = [
    (f"{where}vision_tower.{inner}", f"{where}multi_modal_projector.")
    for where in ("", "model.")
    for inner in ("vision_model.", "")
]
GGUF = TOWER_GGUF | {
    "merged_norm": "mm.soft_emb_norm.weight",
    "projection": "mm.input_projection.weight",
}
# Older GGUF files have the MLP's two matrices under each other's name.
_SWAPPED = {"up": "down", "up_bias": "down_bias", "down": "up", "down_bias": "up_bias"}


def has(source: Source) -> bool:
    if isinstance(source, GgufFile):
        return projector(source) == PROJECTOR
    return isinstance(source.config.get("vision_config"), dict) and bool(_of_hugging_face(source))


def shape(source: Source) -> TowerShape:
    """Raises BadModelFile, or UnsupportedModel for a tower of another kind."""
    return shape_by(source, _of_gguf, _of_folder)


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> None:
    """The whole graph, of a folder or of a GGUF's mmproj file."""
    s = shape(source)
    w = _weights(source, s)
    t = Tower(emitter, numerics, w, s)
    patches = emitter.input(PATCHES, "float32", ["N", 3 * s.sight.patch**2])
    places = t.vector(w.name("places"), w.vector("places").reshape(-1, s.width))
    x = t.add(t.linear(patches, patch_matrix(w, s)), places)
    (x,) = emitter.op("Unsqueeze", [x, emitter.constant([0])])
    for layer in range(s.layers):
        x = t.layer(x, layer, t.attend)
    _merged(t, t.norm(x, "norm"))


def _merged(t: Tower, x: str) -> None:
    """x [1,N,width]: the mean of each block of neighbours, normed, as a row of the text model's."""
    s, e = t.s, t.e
    blocks, merge = s.sight.side // s.sight.merge, s.sight.merge
    (x,) = e.op("Reshape", [x, e.constant([blocks, merge, blocks, merge, s.width])])
    (x,) = e.op("ReduceMean", [x, e.constant([1, 3])], keepdims=0)
    (x,) = e.op("Reshape", [x, e.constant([-1, s.width])])
    name, weight = t.w.norm("merged_norm")
    (x,) = e.call(functions.rms_norm(), [x, t.vector(name, weight)], epsilon=s.epsilon)
    stored = t.w.matrix("projection")  # a row an input, not a row an output
    turned = stored.read_dense(np.arange(s.width)).T
    t.linear(x, dense("tower.projection", np.ascontiguousarray(turned)), output=EMBEDDING)
    e.output(EMBEDDING, "float32", ["M", s.out_width])


def _weights(source: Source, s: TowerShape) -> Weights:
    sizes = {
        **sizes_of(s),
        "places": (s.sight.side**2 * s.width,),
        "merged_norm": (s.width,),
        "projection": (s.width, s.out_width),
    }
    gguf = GGUF
    if isinstance(source, GgufFile) and s.mlp_width != s.width:
        first = source.tensors.get(GGUF["down"].format(0))
        if first and first.shape == (s.mlp_width, s.width):
            gguf = {name: GGUF[_SWAPPED.get(name, name)] for name in GGUF}
    theirs = _of_hugging_face(source)
    return Weights(source, gguf, theirs, sizes, norm_less=1.0, sensitive=set(theirs))


def _of_hugging_face(source: Source) -> Mapping[str, str]:
    """Names of a folder's tensors; none where it has no such tower."""
    for tower, behind in PREFIXES:
        if tower + SIGLIP["patch"] in source:
            table = {name: tower + theirs for name, theirs in SIGLIP.items()}
            return table | {name: behind + theirs for name, theirs in BEHIND.items()}
    return {}


def _of_folder(source: SafetensorsFolder) -> TowerShape:
    config: Mapping[str, Any] = source.config
    vision: Mapping[str, Any] = config["vision_config"]
    activation = vision.get("hidden_act", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedModel(
            f"{source.path} has a tower with {activation}, which flm does not build",
            fix="take a Gemma 3 as published",
        )
    patch, tokens = int(vision["patch_size"]), int(config.get("mm_tokens_per_image", TOKENS))
    side = int(vision["image_size"]) // patch
    return TowerShape(
        layers=int(vision["num_hidden_layers"]),
        width=int(vision["hidden_size"]),
        mlp_width=int(vision["intermediate_size"]),
        heads=int(vision["num_attention_heads"]),
        out_width=int(config["text_config"]["hidden_size"]),
        sight=_sight(source, patch=patch, side=side, merge=side // isqrt(tokens)),
        epsilon=float(vision.get("layer_norm_eps", 1e-6)),
    )


def _of_gguf(source: GgufFile) -> TowerShape:
    patch = count_of(source, "patch_size")
    return TowerShape(
        **file_sizes(source),
        sight=_sight(
            source,
            patch=patch,
            side=count_of(source, "image_size") // patch,
            merge=count_of(source, "projector.scale_factor", POOLED),
        ),
    )


def _sight(source: Source, *, patch: int, side: int, merge: int) -> Sight:
    if side % merge:
        raise contradiction(source.path, f"a tower that merges {side} patches a side by {merge}")
    mean, deviation = colours(source)
    return Sight(
        kind="square",
        patch=patch,
        merge=merge,
        side=side,
        pixels_min=(side * patch) ** 2,
        pixels_max=(side * patch) ** 2,
        placeholder=PLACEHOLDER,
        mark=MARK,
        before=f"\n\n{PLACEHOLDER}",
        after=f"{END}\n\n",
        mean=mean,
        deviation=deviation,
        whole=True,
    )
