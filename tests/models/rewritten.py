"""A GGUF file's model in other clothes, so that one small file tests every way in."""

import json
import re
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flm.graph.weights.gguf import GgufFile
from tests.models.gguf_writer import write_gguf

Floats = npt.NDArray[np.float32]

# What transformers calls a tensor, by what llama.cpp calls it.
PUBLISHED = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "layer_output_scale": "layer_scalar",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
# Where an architecture means something else by it.
OTHERWISE = {
    ("phi3", "ffn_up"): "mlp.gate_up_proj",
    ("gemma3", "ffn_norm"): "pre_feedforward_layernorm",
    ("gemma4", "ffn_norm"): "pre_feedforward_layernorm",
    ("lfm2", "token_embd_norm"): "model.embedding_norm",
    ("lfm2", "attn_norm"): "operator_norm",
    ("lfm2", "attn_q_norm"): "self_attn.q_layernorm",
    ("lfm2", "attn_k_norm"): "self_attn.k_layernorm",
    ("lfm2", "attn_output"): "self_attn.out_proj",
    ("lfm2", "ffn_norm"): "ffn_norm",
    ("lfm2", "ffn_gate"): "feed_forward.w1",
    ("lfm2", "ffn_up"): "feed_forward.w3",
    ("lfm2", "ffn_down"): "feed_forward.w2",
    ("lfm2", "shortconv.in_proj"): "conv.in_proj",
    ("lfm2", "shortconv.conv"): "conv.conv",
    ("lfm2", "shortconv.out_proj"): "conv.out_proj",
}
INTERLEAVED = ("llama", "granite", "smollm3")  # whose query and key rows the converter permutes
NORMS_LESS_ONE = ("gemma3",)  # to whose norms the converter adds 1


def floats(file: GgufFile) -> dict[str, Floats]:
    """Every tensor, dequantised."""
    return {
        name: file.vector(name)
        if len(info.shape) == 1
        else file.matrix(name).read_dense(np.arange(prod(info.shape[:-1]))).reshape(info.shape)
        for name, info in file.tensors.items()
    }


def float_gguf(
    file: GgufFile,
    path: Path,
    changed: Mapping[str, object] | None = None,
    moved: Mapping[str, str] | None = None,
) -> Path:
    """The same model as 32-bit floats, without its tokenizer. `changed` replaces metadata;
    `moved` says which tensor stands in another's place.
    """
    tensors = floats(file)
    kept = {k: v for k, v in file.metadata.items() if not k.startswith("tokenizer.")}
    arrays = {name: (tensors[(moved or {}).get(name, name)], 0) for name in tensors}
    return write_gguf(path, {**kept, **(changed or {})}, arrays)


def published(
    file: GgufFile, config: Path, folder: Path, values: Mapping[str, Floats] | None = None
) -> Path:
    """A Hugging Face folder of the same model as 32-bit floats (`values`, or what flm reads), under
    transformers' names: beside `config`, tensors.json lists each, of the first layer that has it.
    """
    tensors = published_tensors(file, values)
    wanted = json.loads(config.with_name("tensors.json").read_text())
    first: dict[str, str] = {}
    for name in tensors:
        first.setdefault(re.sub(r"\.\d+\.", ".", name), name)
    assert {name: list(tensors[name].shape) for name in first.values()} == wanted
    folder.mkdir()
    (folder / "config.json").write_bytes(config.read_bytes())
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def published_tensors(
    file: GgufFile, values: Mapping[str, Floats] | None = None
) -> dict[str, Floats]:
    tensors = {}
    kind = file.text("general.architecture")
    for name, array in (values or floats(file)).items():
        if name.startswith("rope_"):
            continue
        if kind in INTERLEAVED and name.endswith(("attn_q.weight", "attn_k.weight")):
            key = "head_count" if "attn_q" in name else "head_count_kv"
            heads = int(file.number(f"{kind}.attention.{key}"))
            pairs = array.reshape(heads, -1, 2, array.shape[-1])
            array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
        if kind in NORMS_LESS_ONE and name.endswith("norm.weight"):
            array = array - 1
        if name.endswith("shortconv.conv.weight"):
            array = array[:, None]
        tensors[published_name(kind, name)] = array
    return tensors


def published_name(kind: str, name: str) -> str:
    parts = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)\.(weight|bias)", name)
    assert parts, name
    layer, tensor, suffix = parts.groups()
    where = f"model.layers.{layer}." if layer else ""
    theirs = OTHERWISE.get((kind, tensor)) or PUBLISHED[tensor]
    return where + (theirs if theirs == "layer_scalar" else f"{theirs}.{suffix}")


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    header, at = {}, 0
    for name, array in tensors.items():
        offsets = [at, at := at + array.nbytes]
        dtype = {"float32": "F32", "uint8": "U8"}[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
    data = json.dumps(header).encode()
    body = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(data)) + data + body)
