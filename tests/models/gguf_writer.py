"""Writes GGUF files for tests, well formed or not: the format by hand, with no checks."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: object) -> bytes:
    match item:
        case bool():
            return struct.pack("<I?", BOOL, item)
        case int():
            return struct.pack("<II", UINT32, item)
        case float():
            return struct.pack("<If", FLOAT32, item)
        case str():
            return struct.pack("<I", STRING) + string(item)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(item)}i", ARRAY, INT32, len(item), *item)
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(item)}f", ARRAY, FLOAT32, len(item), *item)
        case list():
            texts = b"".join(string(text) for text in item)
            return struct.pack("<IIQ", ARRAY, STRING, len(item)) + texts
    raise AssertionError(item)


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Mapping[str, tuple[npt.NDArray[np.generic], int]],
    *,
    version: int = 3,
) -> Path:
    """Tensors are (raw bytes or floats [rows, ...], GGUF type); shapes as stored for floats."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(string(key) + value(item) for key, item in metadata.items())
    body = b""
    for name, (array, type) in tensors.items():
        shape = array.shape[::-1]
        header += string(name) + struct.pack("<I", len(shape))
        header += b"".join(struct.pack("<Q", size) for size in shape)
        header += struct.pack("<IQ", type, len(body))
        body += array.tobytes()
        body += b"\0" * (-len(body) % ALIGNMENT)
    path.write_bytes(header + b"\0" * (-len(header) % ALIGNMENT) + body)
    return path


LETTERS: Mapping[str, object] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*(chr(33 + i) for i in range(63)), "AB"],
    "tokenizer.ggml.merges": ["A B"],
}


def tiny_llama(path: Path, *, tokenizer: Mapping[str, object] = LETTERS, **changes: object) -> Path:
    """A llama of two layers with float32 weights that compiles; `changes` replace metadata."""
    random = np.random.default_rng(0)
    width, mlp, layers = 32, 64, 2
    tokens = tokenizer["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    vocabulary = len(tokens)

    def matrix(*shape: int) -> tuple[npt.NDArray[np.float32], int]:
        return random.standard_normal(shape, dtype=np.float32) / 8, 0

    tensors = {
        "token_embd.weight": matrix(vocabulary, width),
        "output_norm.weight": matrix(width),
    }
    for layer in range(layers):
        block = f"blk.{layer}."
        for name, shape in {
            "attn_norm": (width,),
            "attn_q": (width, width),
            "attn_k": (width // 2, width),
            "attn_v": (width // 2, width),
            "attn_output": (width, width),
            "ffn_norm": (width,),
            "ffn_gate": (mlp, width),
            "ffn_up": (mlp, width),
            "ffn_down": (width, mlp),
        }.items():
            tensors[f"{block}{name}.weight"] = matrix(*shape)
    metadata: dict[str, object] = {
        "llama.block_count": layers,
        "llama.embedding_length": width,
        "llama.feed_forward_length": mlp,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 256,
        **tokenizer,
        "general.architecture": "llama",
    }
    dropped = {key for key, item in changes.items() if item is None}
    metadata |= {key: item for key, item in changes.items() if item is not None}
    return write_gguf(path, {k: v for k, v in metadata.items() if k not in dropped}, tensors)
