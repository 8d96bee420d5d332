"""A tiny MiniCPM-V 4.6: the tiny Qwen3.5's text part behind a tower of random weights, and made
pictures of which some are cut into slices.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flm.core.picture import Picture
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.minicpmv.tower import GGUF, HUGGING_FACE
from tests.models.drive import FIXTURES
from tests.models.gguf_writer import write_gguf
from tests.models.rewritten import published, write_safetensors
from tests.models.seen import made

R1 = FIXTURES / "qwen35_r1"
SEED = 46
SIZES = ((16, 12), (25, 61), (75, 61), (33, 32), (6, 100))  # width, height
WIDTH, MLP, LAYERS, OUT, PATCH, TABLE = 32, 48, 3, 128, 4, 10
VISION = {
    "model_type": "minicpmv4_6_vision",
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": PATCH * TABLE,
    "patch_size": PATCH,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "insert_layer_id": 1,
}
PROCESSOR = {
    "image_processor_type": "MiniCPMV4_6ImageProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_slice_nums": 6,
    "patch_size": PATCH,
    "scale_resolution": 32,
    "slice_mode": True,
    "use_image_id": True,
}
# Token ids, and pictures as -1 - their number. Where a picture stands there are, in its place, the
# tokens around its parts: these are the ids of the names in WORDS.
PROMPT = [1, 300, 7, -1, 8, 512, 44, 7, -2, 8, 91, 92, 93, 7, -3, 8, 7, -1, 8, 77, 1201, 640, 13]
WORDS = {
    "<image_id>": 20,
    "</image_id>": 21,
    "<image>": 22,
    "</image>": 23,
    "<slice>": 24,
    "</slice>": 25,
    "\n": 26,
    **{str(digit): 30 + digit for digit in range(10)},
}


def pictures() -> list[Picture]:
    return made(SIZES)


def tower_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of all tensors beside the text part's."""
    tower = "model.vision_tower."
    yield tower + "embeddings.patch_embedding.weight", (WIDTH, 3, PATCH, PATCH)
    yield tower + "embeddings.patch_embedding.bias", (WIDTH,)
    yield tower + "embeddings.position_embedding.weight", (TABLE**2, WIDTH)
    for layer in range(LAYERS):
        at = f"{tower}encoder.layers.{layer}."
        yield from _norm(at + "layer_norm1", WIDTH)
        yield from _attention(at)
        yield from _norm(at + "layer_norm2", WIDTH)
        yield from _linear(at + "mlp.fc1", MLP, WIDTH)
        yield from _linear(at + "mlp.fc2", WIDTH, MLP)
    yield from _norm(tower + "post_layernorm", WIDTH)
    at = tower + "vit_merger."
    yield from _norm(at + "layer_norm1", WIDTH)
    yield from _attention(at)
    yield from _norm(at + "pre_norm", 4 * WIDTH)
    yield from _linear(at + "linear_1", 4 * MLP, 4 * WIDTH)
    yield from _linear(at + "linear_2", WIDTH, 4 * MLP)
    yield from _norm("model.merger.mlp.0.pre_norm", 4 * WIDTH)
    yield from _linear("model.merger.mlp.0.linear_1", 4 * WIDTH, 4 * WIDTH)
    yield from _linear("model.merger.mlp.0.linear_2", OUT, 4 * WIDTH)


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name + ".weight", (width,)
    yield name + ".bias", (width,)


def _linear(name: str, rows: int, columns: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name + ".weight", (rows, columns)
    yield name + ".bias", (rows,)


def _attention(at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        yield from _linear(f"{at}self_attn.{part}", WIDTH, WIDTH)


def sliced_folder(folder: Path, mode: str = "16x") -> Path:
    """As transformers publishes it. `mode`: every 4 or 16 patches are a token."""
    published(GgufFile(R1 / "qwen35_r1.Q4_1.gguf"), R1 / "hf" / "config.json", folder)
    source = SafetensorsFolder(folder, quantized=False)
    tensors = {
        name: source.vector(name).reshape(stored.shape)
        for name, stored in source.tensors.items()
        if not name.startswith(("model.visual.", "mtp."))
    }
    for name, shape in tower_shapes():
        random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        size = 1.2 / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 30)
        tensors[name] = random.normal(0, size, shape).astype(np.float32)
        if "norm" in name and name.endswith("weight"):
            tensors[name] += 1
    write_safetensors(folder / "model.safetensors", tensors)
    theirs = json.loads((folder / "config.json").read_text())
    config = {
        "architectures": ["MiniCPMV4_6ForConditionalGeneration"],
        "model_type": "minicpmv4_6",
        "text_config": theirs["text_config"],
        "vision_config": VISION,
        "image_token_id": 5,
        "video_token_id": 6,
        "insert_layer_id": VISION["insert_layer_id"],
        "downsample_mode": mode,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**PROCESSOR, "downsample_mode": mode})
    )
    return folder


def as_mmproj(folder: Path, path: Path, *, projector: str = "minicpmv4_6") -> Path:
    """The folder's tower as llama.cpp's converter writes it."""
    source = SafetensorsFolder(folder, quantized=False)
    once = source.config["downsample_mode"] == "4x"
    tensors = {}
    for name, theirs in HUGGING_FACE.items():
        if once and name.startswith("window"):
            continue
        for layer in range(LAYERS if "{}" in theirs else 1):
            stored = source.stored(theirs.format(layer))
            values = source.vector(theirs.format(layer)).reshape(stored.shape)
            tensors[GGUF[name].format(layer)] = (values, 0)
    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.projector_type": projector,
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        "clip.vision.block_count": LAYERS,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": MLP,
        "clip.vision.attention.head_count": VISION["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": VISION["layer_norm_eps"],
        "clip.vision.projection_dim": OUT,
        "clip.vision.patch_size": PATCH,
        "clip.vision.image_size": PROCESSOR["scale_resolution"],
        "clip.vision.image_mean": PROCESSOR["image_mean"],
        "clip.vision.image_std": PROCESSOR["image_std"],
        "clip.vision.projector.scale_factor": 2 if once else 4,
        "clip.vision.wa_layer_indexes": [VISION["insert_layer_id"]],
    }
    return write_gguf(path, metadata, tensors)
