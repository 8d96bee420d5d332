"""Streamed text is the decoded text, cut at characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm.text.detokenizer import Detokenizer
from flm.text.gguf_tokenizer import write_tokenizer
from flm.text.tokenizer import Tokenizer
from tests.pure.vocabularies import FIXTURE, sentencepiece


@pytest.fixture(scope="module", params=["byte level", "sentencepiece"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    if request.param == "byte level":
        return Tokenizer.load(FIXTURE)
    folder = tmp_path_factory.mktemp("spm")
    write_tokenizer(sentencepiece(), folder)
    return Tokenizer.load(folder)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.add, ids), detokenizer.finish()]


@given(ids=st.lists(st.integers(0, 2047)))
def test_streamed_text_joined_is_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


EMOJI = "👨‍👩‍👧‍👦🛑🏳️‍🌈"


@given(text=st.text(st.sampled_from(EMOJI + "né中 "), max_size=40))
def test_an_emoji_split_over_tokens_is_never_shown_in_part(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)


def test_emoji_are_split_over_tokens_here(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode(EMOJI)) > len(EMOJI)


def test_a_reply_cut_inside_a_character_ends_in_one_replacement(tokenizer: Tokenizer) -> None:
    *ids, _ = tokenizer.encode("x🛑")
    *pieces, last = streamed(tokenizer, ids)
    assert "".join(pieces) == "x"
    assert last == "�"


def test_bytes_that_start_nothing_do_not_hold_up_the_text(tokenizer: Tokenizer) -> None:
    start = next(i for i in range(2048) if tokenizer.piece_bytes(i) == b"\xe2")
    rest = tokenizer.encode("xx")[-1:] * 2
    assert streamed(tokenizer, [start, *rest])[1].startswith("�")


def test_special_tokens_give_no_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.eos_ids, *tokenizer.encode("x"), *tokenizer.special_ids]
    assert "".join(streamed(tokenizer, ids)) == "x"
