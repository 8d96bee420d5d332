"""Markdown of a reply in colour, as it comes: nothing but colour is added."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm import console
from flm.cli.markup import BOLD, CODE, QUIET, Markup

PIECES = st.lists(st.sampled_from([*"ab *`#~\n", "**", "```", "# ", "```py\n", "\n```\n", "word"]))


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "in_colour", lambda: True)


def shown(*pieces: str) -> str:
    markup = Markup()
    return "".join(map(markup.add, pieces)) + markup.end()


def styles(text: str) -> list[tuple[str, str]]:
    """(style, text), neighbours of one style together."""
    found: list[tuple[str, str]] = []
    for style, inner, plain in re.findall(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m|([^\x1b])", text, re.S):
        if found and found[-1][0] == style:
            found[-1] = style, found[-1][1] + inner + plain
        else:
            found.append((style, inner + plain))
    return found


@given(PIECES)
def test_without_its_colours_it_is_what_was_written(pieces: list[str]) -> None:
    assert re.sub(r"\x1b\[[\d;]+m", "", shown(*pieces)) == "".join(pieces)


@given(PIECES)
def test_how_it_is_cut_changes_nothing(pieces: list[str]) -> None:
    assert styles(shown(*pieces)) == styles(shown("".join(pieces)))


def test_words_have_the_colours_of_their_marks() -> None:
    assert styles(shown("A **bold** word and `code`, 2 * 3.")) == [
        ("", "A "),
        (QUIET, "**"),
        (BOLD, "bold"),
        (QUIET, "**"),
        ("", " word and "),
        (QUIET, "`"),
        (CODE, "code"),
        (QUIET, "`"),
        ("", ", 2 * 3."),
    ]
    assert styles(shown("## A title\ntext")) == [
        (QUIET, "##"),
        (BOLD, " A title"),
        ("", "\ntext"),
    ]


def test_nothing_within_a_code_block_is_a_mark() -> None:
    assert styles(shown("```py\n# a `b` **c**\n~~~\n```\nend `it`")) == [
        (QUIET, "```py"),
        ("", "\n"),
        (CODE, "# a `b` **c**"),
        ("", "\n"),
        (CODE, "~~~"),
        ("", "\n"),
        (QUIET, "```"),
        ("", "\nend "),
        (QUIET, "`"),
        (CODE, "it"),
        (QUIET, "`"),
    ]


def test_a_mark_that_is_never_closed_ends_with_its_line() -> None:
    assert styles(shown("a **b\nc"))[-1] == ("", "\nc")


def test_where_there_is_no_terminal_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "in_colour", lambda: False)
    assert shown("**a** `b`\n# c") == "**a** `b`\n# c"
