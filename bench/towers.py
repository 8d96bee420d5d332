"""A picture tower in an mmproj GGUF with random weights, in the sizes of Qwen3.5 0.8B's.

Tensors and keys are those that llama.cpp's converter writes for `qwen3vl_merger`, so that both
sides take the same file. Matrices are F16 or Q8_0; places, norms and biases are floats.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

SEED = 22
TYPES = ("F16", "Q8_0")
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TowerLike:
    """Sizes; `side`: of the table of places."""

    layers: int = 12
    width: int = 768
    mlp_width: int = 3072
    heads: int = 12
    out_width: int = 1024
    patch: int = 16
    merge: int = 2
    side: int = 48


def write_tower(path: Path, like: TowerLike, type: str) -> Path:
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    kind = GGMLQuantizationType[type]
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.use_gelu", True)
    for key, value in {
        "image_size": like.side * like.patch,
        "patch_size": like.patch,
        "embedding_length": like.width,
        "feed_forward_length": like.mlp_width,
        "block_count": like.layers,
        "attention.head_count": like.heads,
        "projection_dim": like.out_width,
        "spatial_merge_size": like.merge,
    }.items():
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


def _tensors(s: TowerLike) -> Iterator[tuple[str, Floats]]:
    random = np.random.default_rng(SEED)
    merged = s.width * s.merge**2

    def drawn(*sizes: int, scale: float) -> Floats:
        return random.standard_normal(sizes, dtype=np.float32) * np.float32(scale)

    def linear(name: str, rows: int, columns: int) -> Iterator[tuple[str, Floats]]:
        yield f"{name}.weight", drawn(rows, columns, scale=columns**-0.5)
        yield f"{name}.bias", drawn(rows, scale=0.02)

    def norm(name: str) -> Iterator[tuple[str, Floats]]:
        yield f"{name}.weight", random.uniform(0.8, 1.2, s.width).astype(np.float32)
        yield f"{name}.bias", drawn(s.width, scale=0.02)

    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        yield name, drawn(s.width, 3, s.patch, s.patch, scale=(6 * s.patch**2) ** -0.5)
    yield "v.patch_embd.bias", drawn(s.width, scale=0.02)
    yield "v.position_embd.weight", drawn(s.side**2, s.width, scale=0.1)
    for layer in range(s.layers):
        block = f"v.blk.{layer}."
        yield from norm(block + "ln1")
        yield from linear(block + "attn_qkv", 3 * s.width, s.width)
        yield from linear(block + "attn_out", s.width, s.width)
        yield from norm(block + "ln2")
        yield from linear(block + "ffn_up", s.mlp_width, s.width)
        yield from linear(block + "ffn_down", s.width, s.mlp_width)
    yield from norm("v.post_ln")
    yield from linear("mm.0", merged, merged)
    yield from linear("mm.2", s.out_width, merged)
