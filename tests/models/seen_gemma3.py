"""A Gemma 3 that sees: the text fixture's weights, and random ones for a tower of its own."""

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from tests.models.drive import FIXTURES, unpacked
from tests.models.gguf_writer import write_gguf
from tests.models.rewritten import published, write_safetensors

SEED = 34
GEMMA = FIXTURES / "gemma3"
MARK, BEFORE, AFTER = 5, 6, 7  # token ids: of a picture's tokens, and on either side of them
# A picture is 36 tokens, more than the 32 that layers with a window look back.
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 80,  # which 32 does not divide, as 4304 is not
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 48,
    "patch_size": 4,
    "vision_use_head": False,
}
TOKENS, WIDTH = 36, 128
# What llama.cpp calls a tensor, by patterns of what is published.
LLAMA_CPP = {
    r"embeddings\.patch_embedding": "v.patch_embd",
    r"embeddings\.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    r"encoder\.layers": "v.blk",
    "layer_norm": "ln",
    r"self_attn\.(.)_proj": r"attn_\1",
    r"self_attn\.out_proj": "attn_out",
    r"mlp\.fc1": "ffn_up",
    r"mlp\.fc2": "ffn_down",
    r"multi_modal_projector\.mm_soft_emb_norm": "mm.soft_emb_norm",
    r"multi_modal_projector\.mm_input_projection_weight": "mm.input_projection.weight",
}

# Token ids, and pictures as -1 - their number: several, one twice, and text between.
PROMPT = [
    *(1, 300, 11, BEFORE, -1, AFTER, 12, 512, 44, BEFORE, -2, AFTER, BEFORE, -4, AFTER),
    *(91, 92, 93, BEFORE, -1, AFTER, 914, 1795, 617, 409),
]


def shapes() -> dict[str, tuple[int, ...]]:
    """Of the tower's tensors, by the names that are published."""
    width, mlp, patch = VISION["hidden_size"], VISION["intermediate_size"], VISION["patch_size"]
    assert isinstance(width, int)
    assert isinstance(mlp, int)
    assert isinstance(patch, int)
    found: dict[str, tuple[int, ...]] = {
        "embeddings.patch_embedding.weight": (width, 3, patch, patch),
        "embeddings.patch_embedding.bias": (width,),
        "embeddings.position_embedding.weight": (144, width),
        "post_layernorm.weight": (width,),
        "post_layernorm.bias": (width,),
    }
    for layer in range(2):
        place = f"encoder.layers.{layer}."
        for norm in ("layer_norm1", "layer_norm2"):
            found |= {f"{place}{norm}.{part}": (width,) for part in ("weight", "bias")}
        sizes = dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj"), (width, width))
        matrices = {f"self_attn.{name}": size for name, size in sizes.items()}
        for name, size in {**matrices, "mlp.fc1": (mlp, width), "mlp.fc2": (width, mlp)}.items():
            found |= {f"{place}{name}.weight": size, f"{place}{name}.bias": size[:1]}
    return {
        **{f"vision_tower.vision_model.{name}": shape for name, shape in found.items()},
        "multi_modal_projector.mm_soft_emb_norm.weight": (width,),
        "multi_modal_projector.mm_input_projection_weight": (width, WIDTH),
    }


def tower_tensors() -> dict[str, npt.NDArray[np.float32]]:
    tensors = {}
    for name, shape in shapes().items():
        random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        size = 1.2 / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 30)
        if "mm_input" in name:
            size = 2.4 / np.sqrt(shape[0])  # so that the reply is no single word
        values = random.normal(0, size, shape).astype(np.float32)
        tensors[name] = values + 1 if "norm" in name and name.endswith("weight") else values
    tensors["multi_modal_projector.mm_soft_emb_norm.weight"] -= 1
    return tensors


def seeing_folder(scratch: Path) -> Path:
    """As Gemma 3's are published: the text under a prefix, the tower beside it."""
    file = GgufFile(unpacked(GEMMA / "gemma3.Q4_0.gguf", scratch))
    folder = published(file, GEMMA / "hf" / "config.json", scratch / "hf")
    source = SafetensorsFolder(folder, quantized=False)
    tensors: dict[str, npt.NDArray[np.generic]] = {
        f"language_model.{name}": source.vector(name).reshape(stored.shape)
        for name, stored in source.tensors.items()
    }
    write_safetensors(folder / "model.safetensors", tensors | dict(tower_tensors()))
    text = json.loads((folder / "config.json").read_text())
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": VISION,
        "mm_tokens_per_image": TOKENS,
        "image_token_index": MARK,
        "boi_token_index": BEFORE,
        "eoi_token_index": AFTER,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    processor = {"size": {"height": 48, "width": 48}, "image_seq_length": TOKENS}
    processor |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def as_mmproj(
    path: Path, *, swapped: bool = False, changed: Mapping[str, object] | None = None
) -> Path:
    """The tower as llama.cpp's converter writes it; `swapped`: as it used to write the MLP."""
    tensors = {}
    for name, values in tower_tensors().items():
        stem = name.removeprefix("vision_tower.vision_model.")
        if swapped:
            stem = re.sub("fc([12])", lambda found: f"fc{3 - int(found[1])}", stem)
        for theirs, ours in LLAMA_CPP.items():
            stem = re.sub(theirs, ours, stem)
        tensors[stem] = (values + 1 if "soft_emb_norm" in stem else values, 0)
    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.projector_type": "gemma3",
        "clip.has_vision_encoder": True,
        "clip.vision.block_count": 2,
        "clip.vision.embedding_length": 64,
        "clip.vision.feed_forward_length": 80,
        "clip.vision.attention.head_count": 4,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projection_dim": WIDTH,
        "clip.vision.image_size": 48,
        "clip.vision.patch_size": 4,
        "clip.vision.projector.scale_factor": 2,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
    }
    return write_gguf(path, {**metadata, **(changed or {})}, tensors)
