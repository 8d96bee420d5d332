"""The look of what is printed, which people and programs read."""

import re
from collections.abc import Iterator
from io import StringIO

import pytest

from flm import console


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    console.configure()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_have_a_header_two_spaces_and_their_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.say("Loading model: x")
    console.say("Kernel: 7", header="Linux")
    console.warn("low")
    console.fail("what happened", fix="what to do")
    out, err = capsys.readouterr()
    assert out == "[FLM]  Loading model: x\n[Linux]  Kernel: 7\n"
    assert err == "[WARNING]  low\n[ERROR]  what happened\n         what to do\n"


def test_a_level_hides_what_is_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    for level, lines in (("debug", 3), ("info", 2), ("warning", 1), ("error", 0)):
        console.configure(level=level)
        console.debug("d")
        console.say("i")
        console.warn("w")
        out, err = capsys.readouterr()
        assert (out + err).count("\n") == lines


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, terminal = StringIO(), Terminal()
    console.write("x\n", to=plain, colour=console.RED)
    console.write("x\n", to=terminal, colour=console.RED)
    assert plain.getvalue() == "x\n"
    assert terminal.getvalue() == "\033[31mx\n\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    console.write("y\n", to=(quiet := Terminal()), colour=console.RED)
    assert quiet.getvalue() == "y\n"


def test_the_columns_of_the_request_line_are_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    console.request(method="GET", path="/v1/models", status=200)
    console.request(
        method="POST",
        path="/v1/chat/completions",
        status=200,
        model="smollm2:135m",
        prompt_tokens=14046,
        cached_tokens=14012,
        tier="host",
        kind="opener",
        completion_tokens=128,
        wait_s=0.11,
        first_s=0.21,
        read_s=0.1,
        write_s=1.0,
        ending="stop",
        request_id="chatcmpl-1",
    )
    short, full = capsys.readouterr().out.splitlines()
    assert short.index("GET") == full.index("POST")
    assert "kept  14,012 host opener  out    128  wait" in full
    assert "kept       0              out      0  wait" in short
    assert "wait       - s  first       - s  read        - tok/s  write      - tok/s" in short
    said = re.sub(r"\d\d:\d\d:\d\d", "TIME", re.sub(" +", " ", full))
    assert said == (
        "[FLM] TIME 200 in 14,046 kept 14,012 host opener out 128 wait 0.110 s first 0.210 s "
        "read 340.0 tok/s write 127.0 tok/s stop POST /v1/chat/completions smollm2:135m chatcmpl-1"
    )


def test_downloads_off_a_terminal_say_what_lemonade_parses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with console.downloads() as progress:
        for done in (0, 2**20, 2**21, 2**21):
            progress("model.gguf", done, 2**21)
    assert capsys.readouterr().out == "[FLM]  Downloading: 100.0% (2.0MB / 2.0MB)\n"
