"""Encoding in parts gives what encoding the whole gives, for any tokenizer and any texts before."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.alike import common_length
from flm.prefix.encoder import Encoder
from flm.text.gguf_tokenizer import write_tokenizer
from flm.text.tokenizer import Tokenizer
from tests.pure.vocabularies import FIXTURE, sentencepiece

# Words, spaces, digits, special tokens and what only looks like them.
PIECES = [
    *("the", " a", "7", "\n", "\n\n", "  ", "é", "<|", "<|im_"),
    *("<|im_start|>", "<|im_start|>the", "<|im_end|>", "<|user|>", "<s>", "<tool>"),
]
pieces = st.lists(st.sampled_from(PIECES), max_size=8)


@st.composite
def begun_like(draw: st.DrawFn, base: list[str]) -> list[str]:
    return base[: draw(st.integers(0, len(base)))] + draw(pieces)


class Counting(Tokenizer):
    """One that knows how much it was given."""

    chars = 0

    def encode(self, text: str) -> list[int]:
        self.chars += len(text)
        return super().encode(text)


def byte_level(folder: Path) -> None:
    for file in FIXTURE.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


def sticky(folder: Path) -> None:
    """Special tokens that take in the spaces to their left or right, or stand only between such."""
    byte_level(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"].append({**last, "id": 2048, "content": "<|user|>"})
    for token in tokenizer["added_tokens"]:
        token["lstrip"] = token["content"] in ("<|im_end|>", "<|endoftext|>")
        token["rstrip"] = token["content"] in ("<|im_start|>", "<|endoftext|>")
        token["single_word"] = token["content"] == "<|user|>"
    path.write_text(json.dumps(tokenizer))


def longer(folder: Path) -> None:
    """One special token is the beginning of another."""
    byte_level(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    entry: dict[str, Any] = {**tokenizer["added_tokens"][-1], "id": 2048}
    tokenizer["added_tokens"].append({**entry, "content": "<|im_start|>the", "special": False})
    path.write_text(json.dumps(tokenizer))


def pieces_of_sentences(folder: Path) -> None:
    write_tokenizer(sentencepiece(), folder)


@pytest.fixture(scope="module", params=[byte_level, sticky, longer, pieces_of_sentences])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Counting:
    folder = tmp_path_factory.mktemp("tokenizer")
    request.param(folder)
    loaded = Counting.load(folder)
    assert isinstance(loaded, Counting)
    return loaded


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_text_has_the_same_tokens_whatever_came_before(tokenizer: Counting, data: Any) -> None:
    encoder = Encoder(tokenizer, chars_max=200)
    sent: list[list[str]] = [[]]
    for _ in range(6):
        sent.append(data.draw(begun_like(data.draw(st.sampled_from(sent)))))
        text, other = "".join(sent[-1]), "".join(data.draw(begun_like(sent[-1])))
        encoded = encoder.encode(text)
        assert encoded.tokens == tokenizer.encode(text)
        alike = common_length(encoded.tokens, tokenizer.encode(other))
        assert encoder.alike(encoded, other) == alike
        assert sum(len(each.text) for each in encoder._remembered[:-1]) <= 200


def test_a_special_token_that_is_none_beside_a_letter_makes_no_seam(tmp_path: Path) -> None:
    sticky(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    encoder = Encoder(tokenizer)
    known = encoder.encode("a\n\n<|user|> b")
    for text in ("a\n\n<|user|>the", "a\n\nthe", "a\n\n<|user|>so"):
        assert encoder.alike(known, text) == common_length(known.tokens, tokenizer.encode(text))
        known = encoder.encode(text)
        assert known.tokens == tokenizer.encode(text)


def test_only_what_is_new_is_encoded(tokenizer: Counting) -> None:
    encoder = Encoder(tokenizer)
    names = map(tokenizer.piece, tokenizer.special_ids)
    special = "<|im_start|>" if "<|im_start|>" in names else "<|user|>"
    chat = ""
    for turn in range(40):
        chat += f"{special}user\n" + "the other thing " * 20
        encoder.encode(f"{chat} ask {turn}")
    assert len(encoder._remembered) == 1, "the youngest stands for those before it"
    encoder.encode("something else")
    tokenizer.chars = 0
    encoded = encoder.encode(f"{chat}{special}assistant\nthe end")
    encoder.alike(encoded, f"{chat}{special}assistant\nnot the end{special}" + "more " * 1000)
    assert tokenizer.chars < 1000 < len(chat)


def test_one_domains_texts_make_nothing_faster_in_another(tokenizer: Counting) -> None:
    """Else the time to encode would tell what others have sent."""
    text = "<|im_start|>the" + " a" * 50 + "<|im_end|>\n" * 3
    encoder = Encoder(tokenizer)
    cost = []
    for domain in ("a", "b", "a"):
        tokenizer.chars = 0
        assert encoder.encode(text, domain=domain).tokens == tokenizer.encode(text)
        cost.append(tokenizer.chars)
    first, other, again = cost
    assert other >= 2 * len(text), "all of it, and once more to compare"
    assert again <= first
