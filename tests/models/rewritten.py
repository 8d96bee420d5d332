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

WITHOUT_SUFFIX = ("layer_scalar", "A_log", "dt_bias", "sinks")
# What is published beside a text model, and read past.
BESIDE = ("mtp.", "model.visual.")
WITH_VISION = "model.language_model."  # instead of model., where there is a picture tower
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
    ("qwen35", "attn_qkv"): "linear_attn.in_proj_qkv",
    ("qwen35", "attn_gate"): "linear_attn.in_proj_z",
    ("qwen35", "ssm_alpha"): "linear_attn.in_proj_a",
    ("qwen35", "ssm_beta"): "linear_attn.in_proj_b",
    ("qwen35", "ssm_a"): "linear_attn.A_log",
    ("qwen35", "ssm_dt"): "linear_attn.dt_bias",
    ("qwen35", "ssm_conv1d"): "linear_attn.conv1d",
    ("qwen35", "ssm_norm"): "linear_attn.norm",
    ("qwen35", "ssm_out"): "linear_attn.out_proj",
    ("qwen35", "ffn_gate_inp"): "mlp.gate",
    ("qwen35", "ffn_gate_inp_shexp"): "mlp.shared_expert_gate",
    ("qwen35", "ffn_gate_shexp"): "mlp.shared_expert.gate_proj",
    ("qwen35", "ffn_up_shexp"): "mlp.shared_expert.up_proj",
    ("qwen35", "ffn_down_shexp"): "mlp.shared_expert.down_proj",
    ("gpt-oss", "attn_sinks"): "self_attn.sinks",
    ("gpt-oss", "ffn_gate_inp"): "mlp.router",
}
INTERLEAVED = ("llama", "granite", "smollm3")  # whose query and key rows the converter permutes
NORMS_LESS_ONE = ("gemma3", "qwen35", "qwen35moe")  # to whose norms the converter adds 1


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
    file: GgufFile,
    config: Path,
    folder: Path,
    values: Mapping[str, Floats] | None = None,
    dtype: str = "F32",
) -> Path:
    """A Hugging Face folder of the same model as floats (`values`, or what flm reads), under
    transformers' names: beside `config`, tensors.json lists each, of the first layer that has it.
    """
    wanted = json.loads(config.with_name("tensors.json").read_text())
    sees = any(name.startswith(WITH_VISION) for name in wanted)
    tensors: dict[str, npt.NDArray[np.generic]] = {
        name.replace("model.", WITH_VISION, 1) if sees else name: array
        for name, array in published_tensors(file, values).items()
    }
    for name, shape in wanted.items():
        if name.startswith(BESIDE):
            tensors[name] = np.full(shape, np.nan, np.float32)
    first: dict[str, str] = {}
    for name in tensors:
        first.setdefault(re.sub(r"\.\d+\.", ".", name), name)
    assert {name: list(tensors[name].shape) for name in first.values()} == wanted
    folder.mkdir()
    (folder / "config.json").write_bytes(config.read_bytes())
    if dtype == "BF16":
        tensors = {name: bfloat16(array) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def bfloat16(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint16]:
    """Rounded to the upper half of each float, ties to even."""
    bits = array.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def published_tensors(
    file: GgufFile, values: Mapping[str, Floats] | None = None
) -> dict[str, Floats]:
    tensors: dict[str, Floats] = {}
    experts: dict[str, dict[str, Floats]] = {}  # by layer
    kind = file.text("general.architecture")
    ahead = int(file.number(f"{kind}.nextn_predict_layers", 0))
    layers = int(file.number(f"{kind}.block_count")) - ahead
    past = ("rope_", *(f"blk.{layers + i}." for i in range(ahead)))
    for name, array in (values or floats(file)).items():
        if name.startswith(past):
            continue
        if "_exps." in name:
            _, layer, tensor = name.split(".", 2)
            experts.setdefault(layer, {})[tensor] = array
            continue
        if kind in INTERLEAVED and name.endswith(("attn_q.weight", "attn_k.weight")):
            key = "head_count" if "attn_q" in name else "head_count_kv"
            heads = int(file.number(f"{kind}.attention.{key}"))
            pairs = array.reshape(heads, -1, 2, array.shape[-1])
            array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
        if kind in NORMS_LESS_ONE and name.endswith("norm.weight") and "ssm" not in name:
            array = array - 1
        if f"{kind}.ssm.group_count" in file.metadata:
            array = _heads_in_order(file, kind, name, array)
        if name.endswith(("shortconv.conv.weight", "ssm_conv1d.weight")):
            array = array[:, None]
        if name.endswith("ssm_a"):
            array = np.log(-array)
        if name.endswith("ffn_gate_inp_shexp.weight"):
            array = array.reshape(1, -1)
        tensors[published_name(kind, name)] = array
    for layer, parts in experts.items():
        for name, array in _published_experts(kind, parts).items():
            tensors[f"model.layers.{layer}.mlp.experts.{name}"] = array
    return tensors


def _heads_in_order(file: GgufFile, kind: str, name: str, array: Floats) -> Floats:
    """Value heads beside those of the same key head, where llama.cpp takes turns."""
    keys, values, width = (
        int(file.number(f"{kind}.ssm.{key}"))
        for key in ("group_count", "time_step_rank", "state_size")
    )

    def ordered(part: Floats, axis: int = 0) -> Floats:
        before, after = part.shape[:axis], part.shape[axis + 1 :]
        turns = part.reshape(*before, values // keys, keys, -1, *after)
        return np.ascontiguousarray(turns.swapaxes(axis, axis + 1)).reshape(part.shape)

    first = 2 * keys * width if name.endswith(("attn_qkv.weight", "ssm_conv1d.weight")) else 0
    if first:
        return np.concatenate([array[:first], ordered(array[first:])])
    if name.endswith("ssm_out.weight"):
        return ordered(array, axis=1)
    return ordered(array) if re.search("attn_gate|ssm_(alpha|beta|a$|dt)", name) else array


def _published_experts(kind: str, parts: Mapping[str, Floats]) -> dict[str, Floats]:
    """Gate and up in one: Qwen's one after the other; GPT-OSS's by turns, and turned round."""
    gate, up, down = (parts[f"ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
    if kind != "gpt-oss":
        return {"gate_up_proj": np.concatenate([gate, up], axis=1), "down_proj": down}
    gate_bias, up_bias = (parts[f"ffn_{name}_exps.bias"] for name in ("gate", "up"))
    gate_up = np.stack([gate, up], axis=2).reshape(len(gate), -1, gate.shape[2])
    return {
        "gate_up_proj": np.ascontiguousarray(gate_up.swapaxes(1, 2)),
        "gate_up_proj_bias": np.stack([gate_bias, up_bias], axis=2).reshape(len(gate), -1),
        "down_proj": np.ascontiguousarray(down.swapaxes(1, 2)),
        "down_proj_bias": parts["ffn_down_exps.bias"],
    }


def published_name(kind: str, name: str) -> str:
    parts = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+?)(?:\.(weight|bias))?", name)
    assert parts, name
    layer, tensor, suffix = parts.groups()
    where = f"model.layers.{layer}." if layer else ""
    theirs = where + (OTHERWISE.get((kind.removesuffix("moe"), tensor)) or PUBLISHED[tensor])
    return theirs if theirs.endswith(WITHOUT_SUFFIX) else f"{theirs}.{suffix}"


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    tensors = dict(sorted(tensors.items()))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in tensors.items():
        offsets = [at, at := at + array.nbytes]
        dtypes = {"float32": "F32", "uint16": "BF16", "uint8": "U8", "int8": "I8", "int64": "I64"}
        dtype = dtypes[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
    data = json.dumps(header).encode()
    body = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(data)) + data + body)
