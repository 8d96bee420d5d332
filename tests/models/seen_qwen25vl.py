"""A tiny Qwen2.5-VL: the text model of the fixture qwen2, and a tower of random weights."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.qwen25vl.tower import GGUF, HUGGING_FACE
from tests.models.drive import FIXTURES, unpacked
from tests.models.gguf_writer import write_gguf
from tests.models.rewritten import floats, published, write_safetensors

SEED = 25
SECTIONS = (4, 6, 6)
TOWER: dict[str, Any] = {
    "depth": 4,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 72,
    "num_heads": 4,
    "in_chans": 3,
    "out_hidden_size": 128,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 24,  # pixels: three cells
    "fullatt_block_indexes": [1, 3],
    "tokens_per_second": 2,
}
PROCESSOR = {"min_pixels": 4 * 8 * 8, "max_pixels": 48 * 8 * 8, "patch_size": 4}
PLACEHOLDER = 5
PATCHES_STEP = 5  # of pictures cut at their true size, every so many are kept


def text_file(scratch: Path) -> GgufFile:
    return GgufFile(unpacked(FIXTURES / "qwen2" / "qwen2.Q4_0.gguf", scratch))


def folder_of(text: GgufFile, folder: Path, *, nested: bool = False) -> Path:
    """As it is published; or `nested`, as transformers 5 names it."""
    config = FIXTURES / "qwen2" / "hf" / "config.json"
    source = SafetensorsFolder(published(text, config, folder), quantized=False)
    tensors = {
        _named(name, nested): source.vector(name).reshape(stored.shape)
        for name, stored in source.tensors.items()
    }
    tensors |= {_named(name, nested): values for name, values in _tower().items()}
    write_safetensors(folder / "model.safetensors", tensors)
    said = source.config | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "image_token_id": PLACEHOLDER,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
    }
    rope = said.pop("rope_parameters")
    said |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": list(SECTIONS)},
        "vision_config": TOWER | {"model_type": "qwen2_5_vl"},
    }
    if nested:
        top = {k: said.pop(k) for k in ("architectures", "model_type", "vision_config")}
        rope = {"rope_type": "default", "mrope_section": list(SECTIONS), **rope}
        said = top | {"text_config": said | {"rope_parameters": rope}}
    (folder / "config.json").write_text(json.dumps(said))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def _named(name: str, nested: bool) -> str:
    if not nested or name.startswith("lm_head"):
        return name
    where = "model.language_model." if name.startswith("model.") else "model.visual."
    return where + name.split(".", 1)[1]


def _tower() -> dict[str, npt.NDArray[np.float32]]:
    width, wide, merged = 64, 72, 4 * 64
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (width, 3, 2, 4, 4),
        "merger.ln_q.weight": (width,),
        "merger.mlp.0.weight": (merged, merged),
        "merger.mlp.0.bias": (merged,),
        "merger.mlp.2.weight": (128, merged),
        "merger.mlp.2.bias": (128,),
    }
    for layer in range(4):
        shapes |= {
            f"blocks.{layer}.{name}": shape
            for name, shape in {
                "norm1.weight": (width,),
                "norm2.weight": (width,),
                "attn.qkv.weight": (3 * width, width),
                "attn.qkv.bias": (3 * width,),
                "attn.proj.weight": (width, width),
                "attn.proj.bias": (width,),
                "mlp.gate_proj.weight": (wide, width),
                "mlp.gate_proj.bias": (wide,),
                "mlp.up_proj.weight": (wide, width),
                "mlp.up_proj.bias": (wide,),
                "mlp.down_proj.weight": (width, wide),
                "mlp.down_proj.bias": (width,),
            }.items()
        }
    found = {}
    for name, shape in shapes.items():
        random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        size = 1.0 / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 30)
        values = random.normal(0, size, shape).astype(np.float32)
        if name.endswith(("norm1.weight", "norm2.weight", "ln_q.weight")):
            values += 1
        found[f"visual.{name}"] = values
    return found


def as_qwen2vl(text: GgufFile, path: Path) -> Path:
    """The text model as llama.cpp's converter writes it, in floats."""
    named = {key.replace("qwen2.", "qwen2vl.", 1): value for key, value in text.metadata.items()}
    sections = {"qwen2vl.rope.dimension_sections": [*SECTIONS, 0]}
    arrays = {name: (values, 0) for name, values in floats(text).items()}
    return write_gguf(path, named | sections | {"general.architecture": "qwen2vl"}, arrays)


def as_mmproj(folder: Path, path: Path, **changes: object) -> Path:
    """The folder's tower as llama.cpp's converter writes it; `changes` replace what it says, or
    leave it out.
    """
    source = SafetensorsFolder(folder, quantized=False)
    tensors: dict[str, tuple[npt.NDArray[np.generic], int]] = {}
    for name, theirs in HUGGING_FACE.items():
        for layer in range(TOWER["depth"] if "{}" in theirs else 1):
            stored = source.stored(theirs.format(layer))
            values = source.vector(theirs.format(layer)).reshape(stored.shape)
            if name == "patch":
                for part, frame in (("patch", 0), ("patch_other", 1)):
                    tensors[GGUF[part]] = np.ascontiguousarray(values[:, :, frame]), 0
            elif name.startswith("mixed"):
                parts = zip(("query", "key", "value"), np.split(values, 3), strict=True)
                for part, third in parts:
                    part_name = GGUF[name.replace("mixed", part)].format(layer)
                    tensors[part_name] = np.ascontiguousarray(third), 0
            else:
                tensors[GGUF[name].format(layer)] = values, 0
    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.projector_type": "qwen2.5vl_merger",
        "clip.use_silu": True,
        "clip.vision.n_wa_pattern": 2,
        "clip.vision.window_size": TOWER["window_size"],
        "clip.vision.block_count": TOWER["depth"],
        "clip.vision.embedding_length": TOWER["hidden_size"],
        "clip.vision.feed_forward_length": TOWER["intermediate_size"],
        "clip.vision.attention.head_count": TOWER["num_heads"],
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projection_dim": TOWER["out_hidden_size"],
        "clip.vision.patch_size": TOWER["patch_size"],
        "clip.vision.image_min_pixels": PROCESSOR["min_pixels"],
        "clip.vision.image_max_pixels": PROCESSOR["max_pixels"],
    }
    said = {key: value for key, value in (metadata | changes).items() if value is not None}
    return write_gguf(path, said, tensors)
