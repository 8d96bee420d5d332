"""Text to ids and back, over the first 2048 ids of SmolLM2's tokenizer."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm.errors import BadModelFile, BadRequest, UnsupportedModel
from flm.text.endings import ending_ids
from flm.text.tokenizer import Tokenizer
from tests.pure.vocabularies import ENCODED, FIXTURE

TOKENIZER = Tokenizer.load(FIXTURE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the fixture to spoil."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURE / name, tmp_path / name)
    return tmp_path


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_ids_are_the_references() -> None:
    for case in ENCODED:
        assert TOKENIZER.encode(case["text"]) == case["small"], case["text"]


def test_special_tokens_in_text_are_parsed_and_none_is_added() -> None:
    assert TOKENIZER.encode("<|im_start|>") == [1]
    assert TOKENIZER.encode("") == []
    ids = TOKENIZER.encode("a<|im_end|>b")
    assert ids.count(2) == 1
    assert TOKENIZER.decode(ids) == "ab"
    assert TOKENIZER.decode(ids, skip_special=False) == "a<|im_end|>b"
    assert (TOKENIZER.piece(2), TOKENIZER.piece_bytes(2)) == ("<|im_end|>", b"<|im_end|>")


# The vocabulary has no token for a few control characters and for planes 4 and up.
@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x3FFFF, exclude_categories=["Cs"])))
def test_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids, skip_special=False) == text
    assert b"".join(map(TOKENIZER.piece_bytes, ids)) == text.encode()


@given(st.lists(st.integers(0, 2100)))
def test_any_ids_decode(ids: list[int]) -> None:
    joined = b"".join(map(TOKENIZER.piece_bytes, ids))
    assert TOKENIZER.decode(ids, skip_special=False) == joined.decode(errors="replace")


def test_an_id_without_a_token_is_no_text() -> None:
    assert TOKENIZER.vocabulary == 2048
    assert TOKENIZER.piece_bytes(2048) == b""
    assert TOKENIZER.piece(10**9) == ""


def test_lone_surrogates_become_replacement_characters() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud83d\ude00b\ud800c")) == "a😀b�c"


def test_threads_agree() -> None:
    texts = [case["text"] * 20 for case in ENCODED]
    alone = [TOKENIZER.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(TOKENIZER.encode, texts)) == alone


def test_padding_and_truncation_of_training_are_left_behind(folder: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=truncation)
    assert Tokenizer.load(folder).encode(ENCODED[2]["text"]) == ENCODED[2]["small"]


def test_ends_of_a_reply_are_declared_or_known_by_name(folder: Path) -> None:
    assert TOKENIZER.eos_ids == {0, 2}
    assert TOKENIZER.special_ids == set(range(17))
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert Tokenizer.load(folder).eos_ids == {0, 2, 5, 9}
    change(folder / "tokenizer_config.json", eos_token_ids=[7])
    assert Tokenizer.load(folder).eos_ids == {7}


def test_a_call_whose_answer_the_model_opens_ends_the_reply() -> None:
    assert ending_ids({"<turn|>": 1, "<|tool_response>": 2, "<tool_call|>": 3}, []) == [1, 2]


def test_harmony_messages_end_without_ending_the_reply() -> None:
    special = {"<|start|>": 1, "<|end|>": 2, "<|return|>": 3, "<|call|>": 4}
    assert ending_ids(special, []) == [3, 4]
    assert ending_ids({"<|end|>": 2, "<|user|>": 3}, [9]) == [2, 9]


def test_a_bos_token_is_wanted_as_the_config_or_else_the_tokenizer_says(folder: Path) -> None:
    assert (TOKENIZER.bos_token, TOKENIZER.bos_id, TOKENIZER.add_bos) == ("<|im_start|>", 1, False)
    config = folder / "tokenizer_config.json"
    config.write_text('{"bos_token": {"content": "<|im_start|>"}, "eos_token": null}')
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    processor = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    change(folder / "tokenizer.json", post_processor=processor)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.add_bos
    assert tokenizer.encode("hello") == TOKENIZER.encode("hello")
    change(config, add_bos_token=False)
    assert not Tokenizer.load(folder).add_bos


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'),
        ("tokenizer.json", '{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "A"}}'),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "{" * 100_000),
        ("tokenizer_config.json", '{"bos_token": 3}'),
        ("tokenizer_config.json", '{"add_bos_token": "no"}'),
        ("tokenizer_config.json", '{"eos_token_ids": [[]]}'),
        ("generation_config.json", "\x80"),
        ("generation_config.json", '{"eos_token_id": "</s>"}'),
    ],
)
def test_a_broken_file_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content, encoding="latin-1")
    with pytest.raises(BadModelFile, match=name.split("_")[0]) as caught:
        Tokenizer.load(folder)
    assert caught.value.fix


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)


def test_an_unknown_alphabet_is_refused(folder: Path) -> None:
    change(
        folder / "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}
    )
    with pytest.raises(UnsupportedModel, match="decodes"):
        Tokenizer.load(folder)


def test_text_the_library_panics_on_is_a_bad_request(folder: Path) -> None:
    slow = {"Regex": "(a+)+c"}  # cl100k's pattern does as much on ten million spaces
    split = {"type": "Split", "pattern": slow, "behavior": "Isolated", "invert": False}
    change(folder / "tokenizer.json", pre_tokenizer=split)
    tokenizer = Tokenizer.load(folder)
    with pytest.raises(BadRequest, match="cannot be cut"):
        tokenizer.encode("a" * 40)
    assert tokenizer.decode(tokenizer.encode("still")) == "still"
