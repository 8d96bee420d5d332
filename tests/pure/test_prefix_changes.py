"""A change is named where both texts show it, and not otherwise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.core.alike import common_length
from flm.prefix.changes import Change, change_of, is_random, same_words

TIME, ID, COUNTER, WHITESPACE = Change.TIME, Change.ID, Change.COUNTER, Change.WHITESPACE

CASES = [
    # times
    (TIME, "The current time is 12:34:56.\nYou", "The current time is 12:35:10.\nYou"),
    (TIME, "It is 09:59 now", "It is 10:00 now"),
    (TIME, "at 9:59:59", "at 10:00:00"),
    (TIME, "It is 9:30 AM today", "It is 9:30 PM today"),
    (TIME, "It is 9 am today", "It is 11 am today"),
    (TIME, "Current date: 2026-03-01", "Current date: 2026-03-02"),
    (TIME, "now=2026-03-01T12:00:00Z;", "now=2026-03-01T12:00:01Z;"),
    (TIME, '"now": "2026-03-01T12:00:00.123+01:00"', '"now": "2026-03-01T12:00:00.456+01:00"'),
    (TIME, "20260301T120000Z", "20260301T120100Z"),
    (TIME, "Today is Sunday, March 1, 2026.", "Today is Monday, March 2, 2026."),
    (TIME, "Today is 01 Mar 2026.", "Today is 02 Mar 2026."),
    (TIME, "Today is March 1, 2026", "Today is March 12, 2026"),
    (TIME, "Today is the 1st March", "Today is the 2nd March"),
    (TIME, "in February we", "in March we"),
    (TIME, "date 03/01/2026", "date 03/02/2026"),
    (TIME, "Datum: 01.03.2026", "Datum: 02.03.2026"),
    (TIME, "date 2026/03/01", "date 2026/03/02"),
    (TIME, "timestamp: 1772366400\n", "timestamp: 1772366461\n"),
    (TIME, "ts=1772366400123,", "ts=1772366461456,"),
    (TIME, "saved 3 minutes ago", "saved 4 minutes ago"),
    (TIME, "saved 59 minutes ago", "saved an hour ago"),
    # ids and hashes
    (ID, "id 123e4567-e89b-12d3-a456-426614174000", "id 987fcdeb-51a2-43d7-9abc-426614174000"),
    (ID, "commit 85a2784 on main", "commit 4b39ee6 on main"),
    (ID, "sha 9f86d081884c7d659a2feaa0c55ad015", "sha 60303ae22b998861bce3b28f33eec1be"),
    (ID, '"id": "call_abc123"', '"id": "call_xyz789"'),
    (ID, "request req_011CSHoEeqs5C35K2UUqR7Fy", "request req_011CTBzHSkd3TZd9jDk1TqXd"),
    (ID, "token 3q2-7wAAb1Zk9XcQeR5tYg==", "token 8k1-0xBBc4Wm2YdPfS6uZh=="),
    (ID, "cc_version=2.1; cch=aaaaa; x", "cc_version=2.1; cch=bbbbb; x"),
    (ID, "session=k3j2h1;", "session=p0o9i8;"),
    # numbers
    (COUNTER, "You have 12 turns left.", "You have 11 turns left."),
    (COUNTER, "Turn 3 of 10", "Turn 4 of 10"),
    (COUNTER, "Turn 9 of 10", "Turn 10 of 10"),
    (COUNTER, "used 12,480 tokens so far", "used 9,120 tokens so far"),
    (COUNTER, "disk 71.5% full", "disk 72.0% full"),
    (COUNTER, "year 2025 it", "year 2026 it"),
    (COUNTER, "files: 7", "files: 8"),
    # white space
    (WHITESPACE, "Be brief.\n\nUse tools.", "Be brief.\nUse tools."),
    (WHITESPACE, '{"path": "a", "mode": "read"}', '{"path":"a","mode":"read"}'),
    (WHITESPACE, "Be brief. \nUse tools well.", "Be brief.\nUse tools well."),
    # none of these
    (None, "You are a coder.", "You are a writer."),
    (None, "version 1.2.3 of it", "version 1.2.4 of it"),
    (COUNTER, "scale 16:9 wide", "scale 16:10 wide"),
    (COUNTER, "see a.py:12:34 there", "see a.py:12:35 there"),
    (COUNTER, "John 3:16 says", "John 3:17 says"),
    (COUNTER, "call 1-800-123-4567", "call 1-800-123-9999"),
    (None, "It is 12:34, so", "It is 12:34. So"),
    (None, "the Monday plan", "the weekly plan"),
    (None, "Chapter 3 is about cats", "Chapter 4 has dogs in it"),
    (None, "model llama-3.2-1b", "model qwen3-0.6b"),
    (None, "use getUserName", "use getUserMail"),
    (None, "may we", "march on"),
    (None, "It is so", "It is\nnot so"),
    (None, "facade", "decade"),
    (None, "session=morning;", "session=evening;"),
    (None, "uses the internationalization", "uses the institutionalisation"),
    (COUNTER, "size 1800000000 bytes", "size 2900000000 bytes"),
    (COUNTER, "ratio 12", "ratio 13"),
]


def parted(one: str, other: str) -> tuple[str, str, str]:
    at = common_length(one, other)
    return one[:at], one[at:], other[at:]


@pytest.mark.parametrize(("change", "ours", "theirs"), CASES)
def test_a_change_is_named_for_what_both_texts_show(
    change: Change | None, ours: str, theirs: str
) -> None:
    assert change_of(*parted(ours, theirs)) is change
    assert change_of(*parted(theirs, ours)) is change, "whichever came first"


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from(["{}", "{} of 10", "n={};"]))
def test_no_ordinary_number_is_a_time(one: int, other: int, form: str) -> None:
    assert change_of(*parted(form.format(one), form.format(other))) is not TIME


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_texts_have_a_class_or_none(before: str, ours: str, theirs: str) -> None:
    at = common_length(ours, theirs)
    found = change_of(before + ours[:at], ours[at:], theirs[at:])
    assert found is change_of(before + ours[:at], theirs[at:], ours[at:])


@pytest.mark.parametrize("word", ["internationalization", "getUserFromDatabase2", "README", "feed"])
def test_a_written_word_is_not_random(word: str) -> None:
    assert not is_random(word)


@pytest.mark.parametrize(
    ("change", "ours", "theirs"),
    [
        (Change.REORDERED_KEYS, '{"a": 1, "b": "x y"}', '{"b": "x y", "a": 1}, and so on'),
        (Change.REORDERED_KEYS, '{"a": 1, "b": "x y"}', '{"b":"x y","a":1}'),
        (Change.WHITESPACE, '{"a": 1, "b": 2}', '{"a":1,"b":2}'),
        (Change.WHITESPACE, '{"a": "x\\ny"}', '"{\\"a\\": \\"x\\ny\\"}"'),
        (None, '{"a": 1, "b": 2}', '{"a": 1, "c": 2}'),
        (None, '{"a": 1, "b": 2}', '{"b": 2'),
    ],
)
def test_json_is_the_same_in_another_order_or_only_written_otherwise(
    change: Change | None, ours: str, theirs: str
) -> None:
    assert same_words(ours, theirs) is change
