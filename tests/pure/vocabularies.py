"""The same tokens as GGUF files list them: SmolLM2's first 2048, and a small SentencePiece."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "tokenizer"
ENCODED = json.loads((FIXTURE / "encoded.json").read_text())
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

Metadata = dict[str, Any]


def byte_level() -> Metadata:
    """The metadata of a GGUF made from tests/fixtures/tokenizer."""
    tokenizer = json.loads((FIXTURE / "tokenizer.json").read_text())
    tokens = list(tokenizer["model"]["vocab"])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if t in special else NORMAL for t in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }


CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other fox thinks that there is "
    "nothing over there but the thing that the dog thought of other things in other weather"
)


def sentencepiece(merges: int = 60) -> Metadata:
    """A vocabulary as SentencePiece trains it, scored by age, with bytes and a user's token."""
    words = [["▁", *word] for word in CORPUS.split()]
    chars = sorted({char for word in words for char in word} | {"é"})
    learned: list[str] = []
    for _ in range(merges):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        if left + right not in learned:
            learned.append(left + right)
        words = [_joined(word, left, right) for word in words]
    pieces = [*learned, *chars]
    listed = [
        ("<unk>", UNKNOWN),
        ("<s>", CONTROL),
        ("</s>", CONTROL),
        *((f"<0x{byte:02X}>", BYTE) for byte in range(256)),
        ("<tool>", USER_DEFINED),
        ("<|user|>", CONTROL),
    ]
    tokens = [*(token for token, _ in listed), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*(kind for _, kind in listed), *([NORMAL] * len(pieces))],
        "tokenizer.ggml.scores": [*([0.0] * len(listed)), *(-float(i) for i in range(len(pieces)))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _joined(word: list[str], left: str, right: str) -> list[str]:
    joined: list[str] = []
    for piece in word:
        if joined and (joined[-1], piece) == (left, right):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined
