"""A stop string ends the text before it, wherever tokens cut it."""

from hypothesis import given
from hypothesis import strategies as st

from flm.text.stops import StopStrings


def shown(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, bool]:
    strings = StopStrings(stops)
    text, stopped = "", False
    for piece in pieces:
        more, stopped = strings.add(piece)
        text += more
    return text + strings.finish(), stopped


SMALL = st.text("ab", min_size=1, max_size=4)
PIECES = st.lists(st.text("abc", max_size=5), max_size=8)
STOPS = st.lists(SMALL, max_size=3).map(tuple)


@given(PIECES, STOPS)
def test_any_cut_shows_the_same(pieces: list[str], stops: tuple[str, ...]) -> None:
    text = "".join(pieces)
    assert shown(pieces, stops) == shown([text], stops) == shown(list(text), stops)


@given(PIECES, STOPS)
def test_what_is_shown_is_the_text_up_to_a_stop(pieces: list[str], stops: tuple[str, ...]) -> None:
    text = "".join(pieces)
    got, stopped = shown(pieces, stops)
    assert text.startswith(got)
    assert not any(stop in got for stop in stops)
    assert stopped == any(stop in text for stop in stops)
    assert stopped == any(text[len(got) :].startswith(stop) for stop in stops) or got == text


@given(PIECES, STOPS)
def test_no_more_is_held_back_than_may_begin_a_stop(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    strings = StopStrings(stops)
    got, given_ = "", ""
    for piece in pieces:
        more, stopped = strings.add(piece)
        got, given_ = got + more, given_ + piece
        held = given_[len(got) :]
        assert stopped or not held or any(stop.startswith(held) for stop in stops)
        if stopped:
            break


def test_a_stop_across_two_chunks_leaks_no_half_of_it() -> None:
    strings = StopStrings(("own fox",))
    assert strings.add("The quick br") == ("The quick br", False)
    assert strings.add("own") == ("", False)
    assert strings.add(" f") == ("", False)
    assert strings.add("ox jumps") == ("", True)
    assert strings.add(" over") == ("", True)
    assert strings.finish() == ""


def test_a_held_back_tail_is_not_lost_when_the_reply_ends() -> None:
    strings = StopStrings(("own fox",))
    assert strings.add("grown") == ("gr", False)
    assert strings.finish() == "own"


def test_the_stop_complete_first_wins_and_the_longest_of_equals() -> None:
    assert shown(["xabc"], ("abc", "b")) == ("xa", True)
    assert shown(["xab"], ("b", "ab")) == ("x", True)


def test_without_stops_text_passes_at_once() -> None:
    assert StopStrings(()).add("abc") == ("abc", False)
