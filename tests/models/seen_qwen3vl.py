"""A tiny Qwen3-VL: the text model of the fixture qwen3, and a tower of random weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, unpacked
from tests.models.gguf_writer import write_gguf
from tests.models.rewritten import floats, published, write_safetensors
from tests.models.seen import with_tower

SECTIONS = [12, 11, 9]
DEEP = [0, 2]
WIDTH, WIDE, MERGED, ROW = 32, 64, 4 * 32, 128
TOWER: dict[str, Any] = {
    "deepstack_visual_indexes": DEEP,
    "depth": 4,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": WIDTH,
    "in_channels": 3,
    "intermediate_size": WIDE,
    "model_type": "qwen3_vl",
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": ROW,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
PLACEHOLDER = 5
EVERY = 7  # of a row's values one is frozen


def text_file(scratch: Path) -> GgufFile:
    return GgufFile(unpacked(FIXTURES / "qwen3" / "qwen3.Q4_0.gguf", scratch))


def folder_of(text: GgufFile, folder: Path) -> Path:
    """As it is published."""
    config = FIXTURES / "qwen3" / "hf" / "config.json"
    source = SafetensorsFolder(published(text, config, folder), quantized=False)
    tensors = {
        name.replace("model.", "model.language_model.", 1): source.vector(name).reshape(each.shape)
        for name, each in source.tensors.items()
    }
    tensors |= {name: np.zeros(shape, np.float32) for name, shape in _tower().items()}
    write_safetensors(folder / "model.safetensors", tensors)
    said = dict(source.config)
    base = said.pop("rope_parameters")["rope_theta"]
    scaling = {"mrope_interleaved": True, "mrope_section": SECTIONS, "rope_type": "default"}
    said |= {"model_type": "qwen3_vl_text", "rope_scaling": scaling, "rope_theta": base}
    whole = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": said,
        "vision_config": TOWER,
        "image_token_id": PLACEHOLDER,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
        "tie_word_embeddings": said["tie_word_embeddings"],
    }
    (folder / "config.json").write_text(json.dumps(whole))
    return with_tower(folder)


def _tower() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (WIDTH, 3, 2, 4, 4),
        "patch_embed.proj.bias": (WIDTH,),
        "pos_embed.weight": (16, WIDTH),
    }
    for layer in range(TOWER["depth"]):
        block = f"blocks.{layer}."
        shapes |= _layer(block + "attn.qkv", 3 * WIDTH, WIDTH)
        shapes |= _layer(block + "attn.proj", WIDTH, WIDTH)
        shapes |= _layer(block + "mlp.linear_fc1", WIDE, WIDTH)
        shapes |= _layer(block + "mlp.linear_fc2", WIDTH, WIDE)
        shapes |= {f"{block}norm{n}.{part}": (WIDTH,) for n in (1, 2) for part in PARTS}
    mergers = {"merger.": WIDTH} | {f"deepstack_merger_list.{n}.": MERGED for n in range(len(DEEP))}
    for merger, norm in mergers.items():
        shapes |= {f"{merger}norm.{part}": (norm,) for part in PARTS}
        shapes |= _layer(merger + "linear_fc1", MERGED, MERGED)
        shapes |= _layer(merger + "linear_fc2", ROW, MERGED)
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


PARTS = ("weight", "bias")


def _layer(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def as_qwen3vl(
    text: GgufFile,
    path: Path,
    *,
    architecture: str = "qwen3vl",
    tokenizer: bool = False,
    **changes: object,
) -> Path:
    """The text model as llama.cpp's converter writes it, in floats; `changes` replace what it
    says.
    """
    said = {
        key.replace("qwen3.", f"{architecture}.", 1): value
        for key, value in text.metadata.items()
        if tokenizer or not key.startswith("tokenizer.")
    }
    said |= {
        "general.architecture": architecture,
        "qwen3vl.rope.dimension_sections": [*SECTIONS, 0],
        "qwen3vl.n_deepstack_layers": len(DEEP),
    }
    arrays = {name: (values, 0) for name, values in floats(text).items()}
    return write_gguf(path, said | changes, arrays)
