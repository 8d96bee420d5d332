"""A picture tower in an mmproj GGUF with random weights, in the sizes of Qwen3.5 0.8B's or others.

Tensors and keys are those that llama.cpp's converter writes for the projector, so that both sides
take the same file. Matrices are F16 or Q8_0; places, norms and biases are floats.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

SEED = 22
TYPES = ("F16", "Q8_0")
Floats = npt.NDArray[np.float32]
Tensors = Iterator[tuple[str, Floats]]


@dataclass(frozen=True, slots=True)
class TowerLike:
    """Sizes; `side`: of the table of places; `deep`: layers whose rows are further parts. One that
    is `plain` has norms without a mean, a gated MLP, and no places.
    """

    layers: int = 12
    width: int = 768
    mlp_width: int = 3072
    heads: int = 12
    out_width: int = 1024
    patch: int = 16
    merge: int = 2
    side: int = 48
    projector: str = "qwen3vl_merger"
    deep: tuple[int, ...] = ()
    frames: int = 2  # of a patch
    mixed: bool = True  # query, key and value are one matrix
    plain: bool = False
    keys: Mapping[str, int | list[int]] = field(default_factory=dict)


def write_tower(path: Path, like: TowerLike, type: str) -> Path:
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    kind = GGMLQuantizationType[type]
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", like.projector)
    writer.add_bool("clip.use_silu" if like.plain else "clip.use_gelu", True)
    for key, value in {
        "image_size": like.side * like.patch,
        "patch_size": like.patch,
        "embedding_length": like.width,
        "feed_forward_length": like.mlp_width,
        "block_count": like.layers,
        "attention.head_count": like.heads,
        "projection_dim": like.out_width,
        "spatial_merge_size": like.merge,
        **like.keys,
    }.items():
        if isinstance(value, list):
            writer.add_array(f"clip.vision.{key}", value)
        else:
            writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    for name, values in _tensors(like):
        if values.ndim == 2 and "position" not in name:
            writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Drawn:
    """Tensors of random values, one after the other."""

    def __init__(self, like: TowerLike) -> None:
        self.s = like
        self._random = np.random.default_rng(SEED)

    def drawn(self, *sizes: int, scale: float) -> Floats:
        return self._random.standard_normal(sizes, dtype=np.float32) * np.float32(scale)

    def linear(self, name: str, rows: int, columns: int) -> Tensors:
        yield f"{name}.weight", self.drawn(rows, columns, scale=columns**-0.5)
        yield f"{name}.bias", self.drawn(rows, scale=0.02)

    def norm(self, name: str, width: int, *, bias: bool = True) -> Tensors:
        yield f"{name}.weight", self._random.uniform(0.8, 1.2, width).astype(np.float32)
        if bias:
            yield f"{name}.bias", self.drawn(width, scale=0.02)


def _tensors(s: TowerLike) -> Tensors:
    t = _Drawn(s)
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1")[: s.frames]:
        scale = (3 * s.frames * s.patch**2) ** -0.5
        yield name, t.drawn(s.width, 3, s.patch, s.patch, scale=scale)
    if not s.plain:
        yield "v.patch_embd.bias", t.drawn(s.width, scale=0.02)
        yield "v.position_embd.weight", t.drawn(s.side**2, s.width, scale=0.1)
    for layer in range(s.layers):
        yield from _layer(t, f"v.blk.{layer}.")
    yield from t.norm("v.post_ln", s.width, bias=not s.plain)
    yield from BEHIND.get(s.projector, _merger)(t)


def _layer(t: _Drawn, block: str) -> Tensors:
    s = t.s
    yield from t.norm(block + "ln1", s.width, bias=not s.plain)
    if s.mixed:
        yield from t.linear(block + "attn_qkv", 3 * s.width, s.width)
    else:
        yield from _query_key_value(t, block)
    yield from t.linear(block + "attn_out", s.width, s.width)
    yield from t.norm(block + "ln2", s.width, bias=not s.plain)
    if s.plain:
        yield from t.linear(block + "ffn_gate", s.mlp_width, s.width)
    yield from t.linear(block + "ffn_up", s.mlp_width, s.width)
    yield from t.linear(block + "ffn_down", s.width, s.mlp_width)


def _query_key_value(t: _Drawn, block: str) -> Tensors:
    for part in "qkv":
        yield from t.linear(f"{block}attn_{part}", t.s.width, t.s.width)


def _merger(t: _Drawn) -> Tensors:
    """Qwen's, and what it makes of deeper layers."""
    merged, out = t.s.width * t.s.merge**2, t.s.out_width
    yield from t.linear("mm.0", merged, merged)
    yield from t.linear("mm.2", out, merged)
    for layer in t.s.deep:
        block = f"v.deepstack.{layer}."
        yield from t.norm(block + "norm", merged)
        yield from t.linear(block + "fc1", merged, merged)
        yield from t.linear(block + "fc2", out, merged)


def _projection(t: _Drawn) -> Tensors:
    """Gemma 3's."""
    yield from t.norm("mm.soft_emb_norm", t.s.width, bias=False)
    scale = t.s.width**-0.5
    yield "mm.input_projection.weight", t.drawn(t.s.width, t.s.out_width, scale=scale)


def _mergers(t: _Drawn) -> Tensors:
    """MiniCPM-V 4.6's two: every four patches, and every four of these."""
    width, merged, wide = t.s.width, 4 * t.s.width, 4 * t.s.mlp_width
    block = "v.vit_merger."
    yield from t.norm(block + "ln1", width)
    yield from _query_key_value(t, block)
    yield from t.linear(block + "attn_out", width, width)
    yield from t.norm(block + "ds_ln", merged)
    yield from t.linear(block + "ds_ffn_up", wide, merged)
    yield from t.linear(block + "ds_ffn_down", width, wide)
    yield from t.norm("mm.input_norm", merged)
    yield from t.linear("mm.up", merged, merged)
    yield from t.linear("mm.down", t.s.out_width, merged)


BEHIND: Mapping[str, Callable[[_Drawn], Tensors]] = {
    "gemma3": _projection,
    "minicpmv4_6": _mergers,
}
