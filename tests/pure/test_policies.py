"""Each policy puts system and developer messages where it says, and loses none of their words."""

from typing import Any

import pytest

from flm.core.chat import Message
from flm.errors import BadRequest
from flm.server.apis.policies import arranged
from flm.settings import DEVELOPER, SYSTEM

BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=aaaaa;"


def messages(words: str) -> list[Message]:
    """ "s1 d2 u3": roles by their first letter, with that as their text."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [Message(roles[word[0]], word) for word in words.split()]


def shown(result: tuple[Message, ...]) -> str:
    texts = [(each.content or "").replace("\n\n", "+") for each in result]
    return " ".join(f"{each.role[0]}:{text}" for each, text in zip(result, texts, strict=True))


@pytest.mark.parametrize(
    ("system", "developer", "given", "seen"),
    [
        ("merge", "inplace", "u1", "u:u1"),
        ("merge", "inplace", "s1 u2", "s:s1 u:u2"),
        ("merge", "inplace", "s1 s2 u3 s4", "s:s1+s2 u:u3 s:s4"),
        ("merge", "inplace", "s1 d2 u3 d4", "s:s1+d2 u:u3 s:d4"),
        ("strict", "inplace", "s1 d2 u3 d4", "s:s1 s:d2 u:u3 s:d4"),
        ("merge", "into-system", "s1 s2 d3 u4 d5", "s:s1+s2+d3+d5 u:u4"),
        ("merge", "into-system", "u1 d2", "s:d2 u:u1"),
        ("merge", "after-system", "s1 s2 u3 d4 a5 d6", "s:s1+s2 s:d4 s:d6 u:u3 a:a5"),
        ("merge", "after-system", "u1 d2 s3", "s:d2 u:u1 s:s3"),
        ("merge", "one-after-system", "s1 u2 d3 a4 d5", "s:s1 s:d3+d5 u:u2 a:a4"),
        ("merge", "one-after-system", "s1 u2", "s:s1 u:u2"),
        ("strict", "reject", "s1 u2", "s:s1 u:u2"),
        ("merge", "reject", "s1 u2 s3", "s:s1 u:u2 s:s3"),
    ],
)
def test_where_messages_go(system: str, developer: str, given: str, seen: str) -> None:
    assert shown(arranged(messages(given), system=system, developer=developer)) == seen


@pytest.mark.parametrize(
    ("system", "developer", "given", "place"),
    [
        ("strict", "inplace", "s1 s2 u3", "messages[1]"),
        ("strict", "inplace", "u1 s2", "messages[1]"),
        ("strict", "inplace", "d1 s2", "messages[1]"),
        ("merge", "reject", "s1 u2 d3", "messages[2]"),
    ],
)
def test_what_is_refused_is_named(system: str, developer: str, given: str, place: str) -> None:
    with pytest.raises(BadRequest) as error:
        arranged(messages(given), system=system, developer=developer)
    assert error.value.param == place
    assert error.value.message.startswith(place)
    assert "--" in error.value.fix


@pytest.mark.parametrize("system", SYSTEM)
@pytest.mark.parametrize("developer", DEVELOPER)
def test_a_chat_that_has_one_system_message_is_left_as_it_is(system: str, developer: str) -> None:
    given = messages("s1 u2 a3 u4")
    assert arranged(given, system=system, developer=developer) == tuple(given)


def test_marks_go_with_their_text() -> None:
    given = [
        Message("system", f"{BILLING}\none two", marks=(len(BILLING), len(BILLING) + 4)),
        Message("system", ""),
        Message("developer", "three four", marks=(5, 10)),
        Message("user", "five", marks=(4,)),
    ]
    first, second = arranged(given, system="merge", developer="into-system")
    assert first.content == "one two\n\nthree four"
    assert [first.content[:mark] for mark in first.marks] == [
        "one",
        "one two\n\nthree",
        "one two\n\nthree four",
    ]
    assert second == given[-1]


@pytest.mark.parametrize("after", ["", "\n", "\n\n"])
def test_a_message_of_only_a_billing_line_is_none(after: str) -> None:
    given: list[Any] = [Message("system", BILLING + after), *messages("s1 u2 s3")]
    assert shown(arranged(given[:-1], system="strict", developer="inplace")) == "s:s1 u:u2"
    with pytest.raises(BadRequest, match=r"messages\[3\]"):
        arranged(given, system="strict", developer="inplace")
