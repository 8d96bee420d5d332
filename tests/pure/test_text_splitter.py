"""Thoughts and content part at the tags, wherever tokens cut them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm.core.chat import DeltaKind
from flm.text.splitter import Splitter


def split(pieces: list[str], *, thinking: bool = False) -> tuple[str, str]:
    """(thoughts, content)."""
    splitter = Splitter(thinking=thinking)
    deltas = [delta for piece in pieces for delta in splitter.add(piece)] + splitter.finish()
    assert all(delta.text for delta in deltas)
    return (
        "".join(d.text for d in deltas if d.kind is DeltaKind.REASONING),
        "".join(d.text for d in deltas if d.kind is DeltaKind.CONTENT),
    )


PARTS = st.sampled_from(["<think>", "</think>", "<", "thi", "</", "nk>", "a", "b c", "\n", " "])


@given(st.lists(PARTS, max_size=8).map("".join), st.booleans(), st.data())
def test_any_cut_splits_the_same(text: str, thinking: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text], thinking=thinking)
    assert split(pieces, thinking=thinking) == split(list(text), thinking=thinking) == whole


@given(st.lists(PARTS, max_size=8).map("".join).filter(lambda t: "<think>" not in t))
def test_a_reply_that_opens_no_thought_is_passed_on_whole(text: str) -> None:
    assert split([text]) == ("", text)


@pytest.mark.parametrize(
    ("text", "thinking", "wanted"),
    [
        ("<think>\nWhy?\n</think>\n\nBecause.", False, ("Why?\n", "Because.")),
        ("\n<think>a</think>b", False, ("a", "b")),
        ("<think></think>b", False, ("", "b")),
        ("<think>\n\n</think>\n\nb", False, ("", "b")),
        ("\n\n  Indented", False, ("", "\n\n  Indented")),
        ("The tag <think> opens a thought", False, ("", "The tag <think> opens a thought")),
        ("a</think>b", False, ("", "a</think>b")),
        ("<think>a</think> <think>b</think> c", False, ("ab", "c")),
        ("<think>a</think>b<think>c", False, ("a", "b<think>c")),
        ("Why?</think>Because.", True, ("Why?", "Because.")),
        ("<think>Why?</think>Because.", True, ("Why?", "Because.")),
        ("a < b <think> c</think>d", True, ("a < b <think> c", "d")),
        ("</think>b", True, ("", "b")),
    ],
)
def test_tags_and_the_white_space_by_them_are_dropped(
    text: str, thinking: bool, wanted: tuple[str, str]
) -> None:
    assert split([text], thinking=thinking) == wanted


@pytest.mark.parametrize("text", ["Let me see", "Let me see </thi", "\n<"])
def test_a_truncated_thought_never_becomes_the_answer(text: str) -> None:
    assert split([text], thinking=True) == (text.lstrip(), "")
    assert split(["<think>" + text]) == (text.lstrip(), "")


def test_text_goes_out_as_soon_as_it_cannot_be_a_tag() -> None:
    splitter = Splitter()
    assert splitter.add("<thi") == []
    assert [d.text for d in splitter.add("s")] == ["<this"]
    assert [d.text for d in splitter.add(" <think>")] == [" <think>"]


def test_whether_a_thought_is_open_is_told() -> None:
    splitter = Splitter(thinking=True)
    assert splitter.thinking
    splitter.add("a</think>")
    assert not splitter.thinking


def test_tags_are_the_models() -> None:
    splitter = Splitter(opens="[THINK]", closes="[/THINK]")
    deltas = splitter.add("[THINK]a[/THINK]b")
    assert [(d.kind, d.text) for d in deltas] == [
        (DeltaKind.REASONING, "a"),
        (DeltaKind.CONTENT, "b"),
    ]
