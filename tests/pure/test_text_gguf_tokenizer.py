"""A GGUF's tokenizer metadata becomes the tokenizer it was made from."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.gguf import GgufFile
from flm.text.gguf_tokenizer import write_tokenizer
from flm.text.pretokenizers import PRE_TOKENIZERS
from flm.text.tokenizer import Tokenizer
from tests.pure.vocabularies import CORPUS, ENCODED, Metadata, byte_level, sentencepiece


def written(metadata: Metadata, folder: Path) -> Tokenizer:
    write_tokenizer(metadata, folder)
    return Tokenizer.load(folder)


@pytest.mark.parametrize("array", [list, lambda v: [x.encode() for x in v], np.array])
def test_ids_are_the_references_however_strings_are_held(array: Any, tmp_path: Path) -> None:
    metadata = byte_level()
    for key in ("tokens", "merges"):
        metadata[f"tokenizer.ggml.{key}"] = array(metadata[f"tokenizer.ggml.{key}"])
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"])
    metadata["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    metadata["tokenizer.ggml.add_bos_token"] = np.bool_(False)
    tokenizer = written(metadata, tmp_path)
    for case in ENCODED:
        assert tokenizer.encode(case["text"]) == case["small"], case["text"]
    assert tokenizer.special_ids == set(range(17))


def test_smollm2_from_its_real_gguf_is_smollm2(smollm2: Path, tmp_path: Path) -> None:
    tokenizer = written(dict(GgufFile(smollm2).metadata), tmp_path)
    for case in ENCODED:
        assert tokenizer.encode(case["text"]) == case["full"], case["text"]
    assert (tokenizer.vocabulary, tokenizer.eos_ids) == (49_152, {0, 2})


def test_config_and_template_are_kept(tmp_path: Path) -> None:
    tokenizer = written(byte_level(), tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert not tokenizer.add_bos
    assert tokenizer.eos_ids == {0, 2}
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages[0].content }}"


def test_without_a_template_or_special_ids_nothing_is_made_up(tmp_path: Path) -> None:
    metadata = byte_level()
    for key in ("tokenizer.chat_template", "tokenizer.ggml.bos_token_id"):
        del metadata[key]
    tokenizer = written(metadata | {"tokenizer.ggml.add_bos_token": True}, tmp_path)
    assert (tokenizer.bos_token, tokenizer.bos_id, tokenizer.add_bos) == ("", None, False)
    assert not (tmp_path / "chat_template.jinja").exists()


def test_user_defined_tokens_are_parsed_and_shown(tmp_path: Path) -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.token_type"][3] = 4
    tokenizer = written(metadata, tmp_path)
    assert tokenizer.encode("a<repo_name>b")[1] == 3
    assert tokenizer.decode([3]) == "<repo_name>"


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(name: str, tmp_path: Path) -> None:
    tokenizer = written(byte_level() | {"tokenizer.ggml.pre": name}, tmp_path)
    for case in ENCODED:
        if "\x01" not in case["text"] and "e\u0301" not in case["text"]:
            text = tokenizer.decode(tokenizer.encode(case["text"]), skip_special=False)
            assert text == case["text"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("smollm", "it's 12½", ["it", "'s", " ", "1", "2", "½"]),
        ("gpt-2", "it's 12½  x", ["it", "'s", " 12½", " ", " x"]),
        (
            "llama-bpe",
            "IT'LL be 12345\n\n  x",
            ["IT", "'LL", " be", " ", "123", "45", "\n\n", " ", " x"],
        ),
        ("qwen2", "(foo) 12 cafe\u0301", ["(foo", ")", " ", "1", "2", " café"]),
        ("stablelm2", "cafe\u0301", ["cafe", "\u0301"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234/\n", ["Hello", "World's", " ", "123", "4", "/\n"]),
        ("tekken", "HelloWORLD's 12", ["Hello", "WORLD", "'s", " ", "1", "2"]),
        ("deepseek-llm", "中文abc 12\r\n", ["中文", "abc", " ", "12", "\r", "\n"]),
        ("deepseek-v3", "中文ab 1234 _x", ["中文", "ab", " ", "123", "4", " _", "x"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
    ],
)
def test_words_are_cut_as_the_model_was_trained(name: str, text: str, words: list[str]) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    pre_tokenizer = PRE_TOKENIZERS[name]
    blank = json.loads(Library(BPE()).to_str())
    blank["normalizer"] = {"type": "NFC"} if pre_tokenizer.nfc else None
    library = Library.from_str(json.dumps(blank | {"pre_tokenizer": pre_tokenizer.as_json()}))
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)
    cut = [text[start:end] for _, (start, end) in library.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == words


@cache
def vocabulary() -> tuple[list[str], list[float]]:
    metadata = sentencepiece()
    return metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]


def merged_by_hand(text: str, prefix: str = "▁") -> list[int]:
    """SentencePiece's rule, slowly: join the neighbours whose union scores best, leftmost first."""
    tokens, scores = vocabulary()
    score = {t: scores[i] for i, t in enumerate(tokens) if i > 260}
    pieces = list(prefix + text.replace(" ", "▁")) if text else []
    while True:
        joins = [
            (-score[pieces[i] + pieces[i + 1]], i)
            for i in range(len(pieces) - 1)
            if pieces[i] + pieces[i + 1] in score
        ]
        if not joins:
            break
        _, i = min(joins)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    ids: list[int] = []
    for piece in pieces:
        known = piece in score
        ids += [tokens.index(piece)] if known else [3 + byte for byte in piece.encode()]
    return ids


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return written(sentencepiece(), tmp_path_factory.mktemp("spm"))


WORDS = st.lists(st.sampled_from([*CORPUS.split(), " ", "  ", "é", "ñ", "🙂", "thethe", "\n"]))


@given(WORDS.map("".join) | WORDS.map(" ".join))
def test_sentencepiece_merges_the_best_scored_first(spm: Tokenizer, text: str) -> None:
    ids = spm.encode(text)
    assert ids == merged_by_hand(text)
    assert spm.decode(ids) == text


def test_sentencepiece_special_tokens(spm: Tokenizer) -> None:
    assert (spm.bos_token, spm.bos_id, spm.add_bos, spm.eos_ids) == ("<s>", 1, True, {2})
    ids = spm.encode("<|user|>the<tool>")
    assert spm.decode(ids) == " the<tool>".removeprefix(" ")
    assert spm.decode(ids, skip_special=False) == "<|user|> the<tool>"


def test_sentencepiece_without_a_space_prefix(tmp_path: Path) -> None:
    tokenizer = written(sentencepiece() | {"tokenizer.ggml.add_space_prefix": False}, tmp_path)
    assert tokenizer.decode(tokenizer.encode(" the fox")) == " the fox"
    assert not tokenizer.drops_first_space


@pytest.fixture(scope="module")
def gemma4(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same vocabulary as Gemma 4's files have it: with its merges, best first."""
    metadata, folder = sentencepiece(), tmp_path_factory.mktemp("gemma4")
    write_tokenizer(metadata, folder)
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    changed = {
        "model": "gemma4",
        "merges": [" ".join(merge) for merge in merges],
        "scores": [0.0] * len(metadata["tokenizer.ggml.tokens"]),
        "add_space_prefix": False,
    }
    return written(metadata | {f"tokenizer.ggml.{k}": v for k, v in changed.items()}, folder)


@given(WORDS.map("".join) | WORDS.map(" ".join))
def test_gemma4_merges_as_listed_and_puts_no_space_first(gemma4: Tokenizer, text: str) -> None:
    ids = gemma4.encode(text)
    assert ids == merged_by_hand(text, prefix="")
    assert gemma4.decode(ids) == text


def test_phi3_control_tokens_swallow_white_space(tmp_path: Path) -> None:
    tokenizer = written(sentencepiece() | {"general.architecture": "phi3"}, tmp_path)
    assert tokenizer.encode("<|user|>\n the") == tokenizer.encode("<|user|>the")


def without(key: str) -> Any:
    return lambda metadata: metadata.pop(f"tokenizer.ggml.{key}")


def setting(key: str, value: Any) -> Any:
    return lambda metadata: metadata.update({f"tokenizer.{key}": value})


HOSTILE = {
    "no model": (without("model"), "model is missing"),
    "model not text": (setting("ggml.model", 3), "model has int"),
    "no tokens": (without("tokens"), "tokens is missing"),
    "tokens empty": (setting("ggml.tokens", []), "tokens is missing"),
    "tokens a string": (setting("ggml.tokens", "abc"), "not an array"),
    "tokens of numbers": (setting("ggml.tokens", [1, 2]), "tokens has int"),
    "tokens not UTF-8": (setting("ggml.tokens", [b"\xff"]), "not UTF-8"),
    "tokens with surrogates": (setting("ggml.tokens", ["\ud800"]), "not UTF-8"),
    "tokens twice": (setting("ggml.tokens", ["a", "b", "a"]), "'a' twice"),
    "token too long": (setting("ggml.tokens", ["a" * 10_000]), "1024"),
    "too many tokens": (setting("ggml.tokens", [""] * (2**20 + 1)), "more than"),
    "types too few": (setting("ggml.token_type", [1]), "2,048 tokens"),
    "types not numbers": (setting("ggml.token_type", [None] * 2048), "whole number"),
    "no merges": (without("merges"), "merges is missing"),
    "merge of nothing": (setting("ggml.merges", ["ab"]), "'ab'"),
    "merge to no token": (setting("ggml.merges", ["Q Z"]), "'Q Z'"),
    "eos outside": (setting("ggml.eos_token_id", 2048), "2048"),
    "bos negative": (setting("ggml.bos_token_id", -1), "-1"),
    "bos a fraction": (setting("ggml.bos_token_id", 1.5), "1.5"),
    "flag not a flag": (setting("ggml.add_bos_token", "yes"), "'yes'"),
    "template not text": (setting("chat_template", 7), "chat_template"),
    "unknown model": (setting("ggml.model", "rwkv"), "'rwkv'"),
    "unknown pre-tokenizer": (setting("ggml.pre", "klingon"), "'klingon'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_metadata_is_named(case: str, tmp_path: Path) -> None:
    spoil, words = HOSTILE[case]
    metadata = byte_level()
    spoil(metadata)
    with pytest.raises(BadModelFile, match=words) as caught:
        write_tokenizer(metadata, tmp_path)
    assert caught.value.fix
    assert isinstance(caught.value, UnsupportedModel) == case.startswith("unknown")


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "high"])
def test_hostile_scores_are_named(score: Any, tmp_path: Path) -> None:
    metadata = sentencepiece()
    metadata["tokenizer.ggml.scores"][300] = score
    with pytest.raises(BadModelFile, match="scores"):
        write_tokenizer(metadata, tmp_path)
