"""The picture tower of Qwen3.5, which Qwen3-VL's is but for what that adds to further layers.

A picture is patches; each gets a place of a learned table, interpolated, and turns by its row and
its column; all attend to all; neighbours then merge into one row of the text model's width. A still
picture is two frames alike, so the weights of both are one sum.

Inputs: `patches` [N, 3*patch*patch], in blocks of those that merge, `corners` [N,4] of the table
and their `shares` [N,4], `cells` [N,2]: row and column. Output: `embedding` [N/merge^2, width].
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flm.core.json_file import read_json_object
from flm.core.picture import Sight
from flm.devices.device import CELLS, CORNERS, EMBEDDING, PATCHES, SHARES, Array
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph import sight
from flm.graph.emit import Emitter
from flm.graph.layers import Layers, Numerics
from flm.graph.weights.blocks import Matrix, dense
from flm.graph.weights.gguf import GgufFile
from flm.models.family import Source
from flm.models.shape import LAYERS_MAX, WIDTH_MAX, contradiction
from flm.models.weights import Weights

PROJECTOR = "qwen3vl_merger"  # what llama.cpp calls it
EPSILON = 1e-6  # of its norms, fixed in the reference implementation
ROTARY_BASE = 10000.0
PIXELS_MIN, PIXELS_MAX = 256 * 256, 4096 * 4096  # where no file says, as published

_BLOCK, _MERGER = "model.visual.blocks.{}.", "model.visual.merger."
HUGGING_FACE = {
    "patch": "model.visual.patch_embed.proj.weight",
    "patch_bias": "model.visual.patch_embed.proj.bias",
    "places": "model.visual.pos_embed.weight",
    "mixer_norm": _BLOCK + "norm1.weight",
    "mixer_norm_bias": _BLOCK + "norm1.bias",
    "mixed": _BLOCK + "attn.qkv.weight",
    "mixed_bias": _BLOCK + "attn.qkv.bias",
    "output": _BLOCK + "attn.proj.weight",
    "output_bias": _BLOCK + "attn.proj.bias",
    "mlp_norm": _BLOCK + "norm2.weight",
    "mlp_norm_bias": _BLOCK + "norm2.bias",
    "up": _BLOCK + "mlp.linear_fc1.weight",
    "up_bias": _BLOCK + "mlp.linear_fc1.bias",
    "down": _BLOCK + "mlp.linear_fc2.weight",
    "down_bias": _BLOCK + "mlp.linear_fc2.bias",
    "norm": _MERGER + "norm.weight",
    "norm_bias": _MERGER + "norm.bias",
    "merge_up": _MERGER + "linear_fc1.weight",
    "merge_up_bias": _MERGER + "linear_fc1.bias",
    "merge_down": _MERGER + "linear_fc2.weight",
    "merge_down_bias": _MERGER + "linear_fc2.bias",
}
GGUF = {
    "patch": "v.patch_embd.weight",
    "patch_other": "v.patch_embd.weight.1",  # of the second frame
    "patch_bias": "v.patch_embd.bias",
    "places": "v.position_embd.weight",
    "mixer_norm": "v.blk.{}.ln1.weight",
    "mixer_norm_bias": "v.blk.{}.ln1.bias",
    "mixed": "v.blk.{}.attn_qkv.weight",
    "mixed_bias": "v.blk.{}.attn_qkv.bias",
    "output": "v.blk.{}.attn_out.weight",
    "output_bias": "v.blk.{}.attn_out.bias",
    "mlp_norm": "v.blk.{}.ln2.weight",
    "mlp_norm_bias": "v.blk.{}.ln2.bias",
    "up": "v.blk.{}.ffn_up.weight",
    "up_bias": "v.blk.{}.ffn_up.bias",
    "down": "v.blk.{}.ffn_down.weight",
    "down_bias": "v.blk.{}.ffn_down.bias",
    "norm": "v.post_ln.weight",
    "norm_bias": "v.post_ln.bias",
    "merge_up": "mm.0.weight",
    "merge_up_bias": "mm.0.bias",
    "merge_down": "mm.2.weight",
    "merge_down_bias": "mm.2.bias",
}


@dataclass(frozen=True, slots=True)
class TowerShape:
    layers: int
    width: int
    mlp_width: int
    heads: int
    out_width: int
    sight: Sight

    @property
    def merged_width(self) -> int:
        return self.width * self.sight.merge**2


def has_tower(source: Source) -> bool:
    if isinstance(source, GgufFile):
        return source.metadata.get("clip.projector_type") == PROJECTOR or (
            source.metadata.get("clip.vision.projector_type") == PROJECTOR
        )
    return isinstance(source.config.get("vision_config"), dict) and (
        HUGGING_FACE["patch"] in source
    )


def emit_tower(source: Source, emitter: Emitter, numerics: Numerics) -> TowerShape:
    """The whole graph, of a folder or of a GGUF's mmproj file."""
    shape = tower_shape(source)
    w = Weights(source, GGUF, HUGGING_FACE, _sizes(shape), sensitive=set(HUGGING_FACE))
    tower = _Tower(emitter, numerics, w, shape)
    x = tower.embedded()
    for layer in range(shape.layers):
        with emitter.scope(f"layers.{layer}"):
            x = tower.layer(x, layer)
    tower.merged(x)
    return shape


class _Tower(Layers):
    def __init__(
        self, emitter: Emitter, numerics: Numerics, weights: Weights, shape: TowerShape
    ) -> None:
        super().__init__(emitter, numerics)
        self._w, self._s = weights, shape
        self._patches = emitter.input(PATCHES, "float32", ["N", 3 * shape.sight.patch**2])
        self._corners = emitter.input(CORNERS, "int64", ["N", 4])
        self._shares = emitter.input(SHARES, "float32", ["N", 4])
        cells = emitter.input(CELLS, "int64", ["N", 2])
        pairs = shape.width // shape.heads // 2
        steps: Array = ROTARY_BASE ** (-np.arange(0, pairs, 2) / pairs)
        (wide,) = emitter.op("Cast", [cells], to=1)
        (each,) = emitter.op("Unsqueeze", [wide, emitter.constant([2])])
        turn = self.vector("tower.rotary", steps.astype(np.float32))
        (angles,) = emitter.op("Mul", [each, turn])
        (flat,) = emitter.op("Reshape", [angles, emitter.constant([0, pairs])])
        (self._cos,) = emitter.op("Cos", [flat])
        (self._sin,) = emitter.op("Sin", [flat])
        (count,) = emitter.op("Shape", [cells], end=1)
        (count,) = emitter.op("Squeeze", [count])
        (turns,) = emitter.op("Range", [emitter.constant(0), count, emitter.constant(1)])
        (self._turns,) = emitter.op("Unsqueeze", [turns, emitter.constant([0])])

    def embedded(self) -> str:
        """[1,N,width]."""
        side = self._s.sight.side
        places = self._w.vector("places").reshape(side * side, self._s.width)
        table = self.vector(self._w.name("places"), places)
        (at,) = self.e.call(sight.corners(), [table, self._corners, self._shares])
        x = self.add(self.linear(self._patches, _patch_matrix(self._w, self._s)), at)
        return self.e.op("Unsqueeze", [x, self.e.constant([0])])[0]

    def layer(self, x: str, layer: int) -> str:
        w, s = self._w, self._s
        mixed = self.linear(self._norm(x, "mixer_norm", layer), _matrix(w, "mixed", layer))
        width = s.width // s.heads
        (attended,) = self.e.call(
            sight.full_attention(),
            [*self.split(mixed, 3), self._cos, self._sin, self._turns],
            num_heads=s.heads,
            width=width,
            scale=width**-0.5,
        )
        x = self.add(x, self.linear(attended, _matrix(w, "output", layer)))
        up = self.linear(self._norm(x, "mlp_norm", layer), _matrix(w, "up", layer))
        (bent,) = self.e.call(sight.gelu(tanh=True), [up])
        return self.add(x, self.linear(bent, _matrix(w, "down", layer)))

    def merged(self, x: str) -> None:
        blocks = self.e.constant([-1, self._s.merged_width])
        (x,) = self.e.op("Reshape", [self._norm(x, "norm"), blocks])
        (bent,) = self.e.call(
            sight.gelu(tanh=False), [self.linear(x, _matrix(self._w, "merge_up"))]
        )
        self.linear(bent, _matrix(self._w, "merge_down"), output=EMBEDDING)
        self.e.output(EMBEDDING, "float32", ["M", self._s.out_width])

    def _norm(self, x: str, name: str, layer: int = 0) -> str:
        parts = [
            self.vector(self._w.name(part, layer), self._w.vector(part, layer))
            for part in (name, f"{name}_bias")
        ]
        return self.e.call(sight.layer_norm(), [x, *parts], epsilon=EPSILON)[0]


def _matrix(w: Weights, name: str, layer: int = 0) -> Matrix:
    """As it is stored, but a folder's floats rounded where their rows are whole blocks."""
    columns = w.sizes[name][1] or 0
    return w.floats(name, layer) if columns % 32 and not w.is_gguf else w.matrix(name, layer)


def _patch_matrix(w: Weights, s: TowerShape) -> Matrix:
    """[width, 3*patch*patch]: what both frames' weights add up to."""
    area = s.sight.patch**2
    theirs = w.source.vector(w.name("patch"))
    if w.is_gguf:
        frames = [theirs, w.source.vector(w.name("patch_other"))]
    else:
        if theirs.size != s.width * 3 * 2 * area:
            raise contradiction(w.source.path, f"tensor {w.name('patch')} has {theirs.size} values")
        by_frame = theirs.reshape(s.width, 3, 2, area)
        frames = [by_frame[:, :, 0], by_frame[:, :, 1]]
    if any(frame.size != s.width * 3 * area for frame in frames):
        raise contradiction(w.source.path, f"tensor {w.name('patch')} is not {s.width} patches")
    both: Array = np.asarray(sum(frame.reshape(s.width, 3 * area) for frame in frames))
    return replace(dense("tower.patch", both), bias=w.vector("patch_bias"))


def _sizes(s: TowerShape) -> dict[str, tuple[int | None, ...]]:
    merged = s.merged_width
    matrices: dict[str, tuple[int, int]] = {
        "mixed": (3 * s.width, s.width),
        "output": (s.width, s.width),
        "up": (s.mlp_width, s.width),
        "down": (s.width, s.mlp_width),
        "merge_up": (merged, merged),
        "merge_down": (s.out_width, merged),
    }
    norms = ("mixer_norm", "mlp_norm", "norm")
    return {
        "patch_bias": (s.width,),
        "places": (s.sight.side**2 * s.width,),
        **matrices,
        **{name: (s.width,) for norm in norms for name in (norm, f"{norm}_bias")},
    }


def tower_shape(source: Source) -> TowerShape:
    """Raises BadModelFile, or UnsupportedModel for a tower of another kind."""
    try:
        shape = _from_gguf(source) if isinstance(source, GgufFile) else _from_config(source)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise BadModelFile(f"{source.path}: its picture tower: {error!r}") from error
    sizes = {
        "layers": (shape.layers, LAYERS_MAX),
        "width": (shape.width, WIDTH_MAX),
        "mlp_width": (shape.mlp_width, WIDTH_MAX),
        "heads": (shape.heads, shape.width),
        "out_width": (shape.out_width, WIDTH_MAX),
        "patch": (shape.sight.patch, 64),
        "merge": (shape.sight.merge, 8),
        "side": (shape.sight.side, 1024),
    }
    for name, (value, most) in sizes.items():
        if not 0 < value <= most:
            raise contradiction(source.path, f"its tower's {name} is {value}, of at most {most}")
    if shape.width % (4 * shape.heads):
        raise contradiction(source.path, f"a tower with {shape.heads} heads of {shape.width}")
    return shape


def _from_config(source: Source) -> TowerShape:
    assert not isinstance(source, GgufFile)
    config: Mapping[str, Any] = source.config["vision_config"]
    if config.get("deepstack_visual_indexes"):
        raise UnsupportedModel(
            f"{source.path} has a tower that adds to further layers, which flm does not build",
            fix="take a Qwen3.5",
        )
    if int(config.get("temporal_patch_size", 2)) != 2:
        raise contradiction(source.path, "its tower's pictures are not of two frames")
    side = int(config["num_position_embeddings"]) ** 0.5
    return TowerShape(
        layers=int(config["depth"]),
        width=int(config["hidden_size"]),
        mlp_width=int(config["intermediate_size"]),
        heads=int(config["num_heads"]),
        out_width=int(config["out_hidden_size"]),
        sight=Sight(
            patch=int(config["patch_size"]),
            merge=int(config["spatial_merge_size"]),
            side=round(side),
            **_bounds(source.path),
        ),
    )


def _bounds(folder: Path) -> dict[str, int]:
    """As preprocessor_config.json has them."""
    size = read_json_object(folder / "preprocessor_config.json").get("size")
    said = size if isinstance(size, dict) else {}
    low, high = said.get("shortest_edge") or PIXELS_MIN, said.get("longest_edge") or PIXELS_MAX
    return {"pixels_min": int(low), "pixels_max": int(high)}


def _from_gguf(source: GgufFile) -> TowerShape:
    def number(key: str, default: float | None = None) -> int:
        return int(source.number(f"clip.vision.{key}", default))

    if any(name.startswith("v.deepstack.") for name in source.tensors):
        raise UnsupportedModel(
            f"{source.path} is a tower that adds to further layers, which flm does not build",
            fix="take a Qwen3.5",
        )
    places = source.vector(GGUF["places"]).size // max(1, number("embedding_length"))
    return TowerShape(
        layers=number("block_count"),
        width=number("embedding_length"),
        mlp_width=number("feed_forward_length"),
        heads=number("attention.head_count"),
        out_width=number("projection_dim"),
        sight=Sight(
            patch=number("patch_size"),
            merge=number("spatial_merge_size", 2),
            side=round(places**0.5),
            pixels_min=PIXELS_MIN,
            pixels_max=PIXELS_MAX,
        ),
    )
