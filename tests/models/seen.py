"""Made pictures, and random weights for the tower of a published folder."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flm.core.picture import Picture
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models.qwen35.tower import GGUF, HUGGING_FACE
from tests.models.gguf_writer import write_gguf
from tests.models.rewritten import write_safetensors

SEED = 35
SIZES = ((24, 16), (37, 91), (8, 40), (64, 64))  # width, height


def pictures() -> list[Picture]:
    return made(SIZES)


def made(sizes: Sequence[tuple[int, int]]) -> list[Picture]:
    """Waves of colour with some noise, so that scaling them is no trifle."""
    found = []
    for number, (width, height) in enumerate(sizes):
        random = np.random.default_rng([SEED, number])
        y, x = np.mgrid[:height, :width]
        waves = [np.sin(x / (3 + k) + y * (k - 1) / 7 + number) for k in range(3)]
        colours = 128 + 90 * np.stack(waves, axis=-1) + random.normal(0, 12, (height, width, 3))
        rgb = np.clip(colours, 0, 255).astype(np.uint8)
        found.append(Picture(width, height, rgb.tobytes()))
    return found


def with_tower(folder: Path) -> Path:
    """The same folder, its tower's tensors drawn from a seed."""
    source = SafetensorsFolder(folder, quantized=False)
    tensors = {}
    for name, stored in source.tensors.items():
        values = source.vector(name).reshape(stored.shape)
        if name.startswith("model.visual."):
            random = np.random.default_rng([SEED, zlib.crc32(name.encode())])
            size = 1.2 / np.sqrt(np.prod(stored.shape[1:]) if len(stored.shape) > 1 else 30)
            values = random.normal(0, size, stored.shape).astype(np.float32)
            if "norm" in name and name.endswith("weight"):
                values += 1
        if not name.startswith("mtp."):
            tensors[name] = values
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    size = {"shortest_edge": 4 * 8 * 8, "longest_edge": 48 * 8 * 8}
    processor = {"size": size, "patch_size": config["vision_config"]["patch_size"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def as_mmproj(
    folder: Path, path: Path, *, deep: list[int] | None = None, **changes: object
) -> Path:
    """The folder's tower as llama.cpp's converter writes it; `deep` are the layers whose mergers it
    has, if not all as they are; `changes` replace what it says.
    """
    source = SafetensorsFolder(folder, quantized=False)
    vision = source.config["vision_config"]
    bounds = json.loads((folder / "preprocessor_config.json").read_text())["size"]
    deep = vision["deepstack_visual_indexes"] if deep is None else deep
    tensors = {}
    for name, theirs in HUGGING_FACE.items():
        layers = (
            deep if name.startswith("deep") else range(vision["depth"] if "{}" in theirs else 1)
        )
        for number, layer in enumerate(layers):
            values = source.vector(theirs.format(number))
            values = values.reshape(source.stored(theirs.format(number)).shape)
            if name == "patch":
                tensors[GGUF["patch_other"]] = (np.ascontiguousarray(values[:, :, 1]), 0)
                values = np.ascontiguousarray(values[:, :, 0])
            tensors[GGUF[name].format(layer)] = (values, 0)
    metadata: dict[str, object] = {
        "general.architecture": "clip",
        "clip.projector_type": "qwen3vl_merger",
        "clip.vision.block_count": vision["depth"],
        "clip.vision.embedding_length": vision["hidden_size"],
        "clip.vision.feed_forward_length": vision["intermediate_size"],
        "clip.vision.attention.head_count": vision["num_heads"],
        "clip.vision.projection_dim": vision["out_hidden_size"],
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.spatial_merge_size": vision["spatial_merge_size"],
        "clip.vision.image_min_pixels": bounds["shortest_edge"],
        "clip.vision.image_max_pixels": bounds["longest_edge"],
    }
    return write_gguf(path, metadata | changes, tensors)


# Token ids, and pictures as -1 - their number: several, the same twice, and text between.
PROMPT = [1, 300, 7, -1, 8, 512, 44, 7, -2, 8, 91, 92, 93, 7, -3, 8, 7, -1, 8, 77, 1201, 640, 13]
