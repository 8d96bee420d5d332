"""Writes a tokenizer.json that says what a GGUF's metadata says: one library then reads both."""

import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from flm.errors import UnsupportedModel
from flm.text.endings import ending_ids
from flm.text.gguf_vocabulary import GgufVocabulary, TokenType, bad_metadata, read_vocabulary
from flm.text.pretokenizers import PRE_TOKENIZERS

# Phi-3's control tokens swallow the white space after them, which no metadata says.
_PHI3_PLAIN = {"<unk>", "<s>", "<|endoftext|>"}


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and, if there is one, chat_template.jinja.

    `metadata` is a GGUF's, by key: `tokenizer.*` and `general.architecture` are read.
    Raises BadModelFile (hostile or missing values) and UnsupportedModel (a kind we lack).
    """
    vocabulary = read_vocabulary(metadata)
    if vocabulary.model == "gpt2":
        tokenizer, add_bos = _byte_level(vocabulary)
    elif vocabulary.model in ("llama", "gemma4"):
        tokenizer, add_bos = _sentencepiece(vocabulary, metadata.get("general.architecture"))
    else:
        raise UnsupportedModel(
            f"the tokenizer model {vocabulary.model!r} is none of gpt2, llama and gemma4",
            fix="use a model of a supported family (flm list)",
        )
    _write(folder / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False))
    config = json.dumps(_config(vocabulary, add_bos), ensure_ascii=False, indent=2)
    _write(folder / "tokenizer_config.json", config + "\n")
    if vocabulary.chat_template:
        _write(folder / "chat_template.jinja", vocabulary.chat_template)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")


def _config(vocabulary: GgufVocabulary, add_bos: bool) -> dict[str, Any]:
    bos_id, eos_id = vocabulary.bos_id, vocabulary.eos_id
    special = vocabulary.of_type(TokenType.CONTROL, TokenType.USER_DEFINED)
    return {
        "bos_token": None if bos_id is None else vocabulary.tokens[bos_id],
        "eos_token": None if eos_id is None else vocabulary.tokens[eos_id],
        "add_bos_token": add_bos,
        "eos_token_ids": ending_ids(special, vocabulary.ending_ids),
    }


def _byte_level(vocabulary: GgufVocabulary) -> tuple[dict[str, Any], bool]:
    """(tokenizer.json, whether a bos token comes first) of a byte-level BPE vocabulary."""
    pre_tokenizer = PRE_TOKENIZERS.get(vocabulary.pre)
    if pre_tokenizer is None:
        raise UnsupportedModel(
            f"the pre-tokenizer {vocabulary.pre!r} is not known",
            fix="use a model of a supported family (flm list), or a newer flm",
        )
    if not vocabulary.merges:
        raise bad_metadata("ggml.merges", "is missing or empty")
    tokenizer = {
        "version": "1.0",
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": {"type": "NFC"} if pre_tokenizer.nfc else None,
        "pre_tokenizer": pre_tokenizer.as_json(),
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "ignore_merges": pre_tokenizer.ignore_merges,
            "vocab": {token: id_ for id_, token in enumerate(vocabulary.tokens)},
            "merges": vocabulary.merges,
        },
    }
    default = pre_tokenizer.add_bos
    return tokenizer, default if vocabulary.add_bos is None else vocabulary.add_bos


def _sentencepiece(vocabulary: GgufVocabulary, architecture: object) -> tuple[dict[str, Any], bool]:
    """(tokenizer.json, whether a bos token comes first) of a SentencePiece BPE vocabulary: its
    merges are given by its tokens' scores, but for gemma4, which lists them.
    """
    given = "merges" if vocabulary.model == "gemma4" else "scores"
    if not getattr(vocabulary, given):
        raise bad_metadata(f"ggml.{given}", "is missing or empty")
    prefix = vocabulary.add_space_prefix is not False
    added = _added_tokens(vocabulary)
    for token in added:
        if architecture == "phi3" and token["content"] not in _PHI3_PLAIN:
            token["rstrip"] = True
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    unescape = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": "▁"}] if prefix else []), escape],
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                unescape,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([strip] if prefix else []),
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": next(iter(vocabulary.of_type(TokenType.UNKNOWN)), None),
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: id_ for id_, token in enumerate(vocabulary.tokens)},
            "merges": vocabulary.merges if given == "merges" else _merges_by_score(vocabulary),
        },
    }
    return tokenizer, vocabulary.add_bos is not False


def _added_tokens(vocabulary: GgufVocabulary) -> list[dict[str, Any]]:
    special = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    added = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": id_, "content": token, **plain, "special": token in special}
        for token, id_ in added.items()
    ]


def _merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Every way to join two tokens to a third, the best third first: what SentencePiece does."""
    mergeable = vocabulary.of_type(TokenType.NORMAL, TokenType.UNUSED)
    ranked = []
    for token, id_ in mergeable.items():
        rank = -vocabulary.scores[id_]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                ranked.append((rank, -cut, -len(right), left, right))
    ranked.sort(key=itemgetter(0, 1, 2))
    return [(left, right) for *_, left, right in ranked]
