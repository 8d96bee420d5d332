"""A tiny encoder: a folder as sentence-transformers writes it, and what it computes, in float64."""

import json
from collections.abc import Mapping, Sequence
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.models.rewritten import write_safetensors

Floats = npt.NDArray[np.float64]
Tensors = Mapping[str, npt.NDArray[Any]]
WORDS = ["the", "a", "sky", "is", "blue", "river", "runs", "through", "town", "what", "where"]
WORDS += ["##s", "##ing", "look", "find", "so"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 40,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": len(SPECIAL + WORDS),
}
LENGTH_MAX = 24


def write_bert(folder: Path, *, first: bool = False, **config: Any) -> Tensors:
    """`first`: its first token stands for a text, not the mean of all."""
    (folder / "1_Pooling").mkdir(parents=True)
    pooling = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
    files = {
        "config.json": {**CONFIG, **config},
        "sentence_bert_config.json": {"max_seq_length": LENGTH_MAX},
        "1_Pooling/config.json": pooling,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    _tokenizer().save(str(folder / "tokenizer.json"))
    tensors = _tensors()
    write_safetensors(folder / "model.safetensors", tensors)
    return tensors


def reference(tensors: Tensors, ids: Sequence[int], config: Mapping[str, Any] = CONFIG) -> Floats:
    """The mean of a text's tokens, of length 1."""
    t = {name: np.asarray(values, np.float64) for name, values in tensors.items()}
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]

    def linear(x: Floats, name: str) -> Floats:
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def norm(x: Floats, name: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        return scaled * t[f"{name}.weight"] + t[f"{name}.bias"]

    def split(x: Floats) -> Floats:
        return x.reshape(len(x), heads, -1).transpose(1, 0, 2)

    at = "embeddings"
    x = t[f"{at}.word_embeddings.weight"][list(ids)]
    x = x + t[f"{at}.position_embeddings.weight"][: len(ids)]
    x = norm(x + t[f"{at}.token_type_embeddings.weight"][0], f"{at}.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        names = (f"{at}.attention.self.{name}" for name in ("query", "key", "value"))
        q, k, v = (split(linear(x, name)) for name in names)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (odds / odds.sum(-1, keepdims=True)) @ v
        mixed = linear(mixed.transpose(1, 0, 2).reshape(x.shape), f"{at}.attention.output.dense")
        x = norm(x + mixed, f"{at}.attention.output.LayerNorm")
        wide = linear(x, f"{at}.intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(erf)(wide / np.sqrt(2)))
        x = norm(x + linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def _tensors() -> Tensors:
    random = np.random.default_rng(7)
    width, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings": (CONFIG["vocab_size"], width),
        "embeddings.position_embeddings": (CONFIG["max_position_embeddings"], width),
        "embeddings.token_type_embeddings": (2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        self_ = [f"{at}.attention.self.{name}" for name in ("query", "key", "value")]
        shapes |= dict.fromkeys([*self_, f"{at}.attention.output.dense"], (width, width))
        shapes |= {f"{at}.intermediate.dense": (wide, width), f"{at}.output.dense": (width, wide)}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    found: dict[str, npt.NDArray[Any]] = {}
    for name, shape in shapes.items():
        scale = 1.0 if "embeddings" in name else 1.5 / shape[1] ** 0.5
        found[f"{name}.weight"] = random.normal(0, scale, shape).astype(np.float32)
        found[f"{name}.bias"] = random.normal(0, 0.3, shape[0]).astype(np.float32)
    for name in norms:
        found[f"{name}.weight"] = random.normal(1, 0.2, width).astype(np.float32)
        found[f"{name}.bias"] = random.normal(0, 0.2, width).astype(np.float32)
    # What transformers once kept beside them.
    found["embeddings.position_ids"] = np.arange(CONFIG["max_position_embeddings"])[None]
    return found


def _tokenizer() -> Tokenizer:
    vocabulary = {word: id_ for id_, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(16)  # as published folders have it
    return tokenizer
