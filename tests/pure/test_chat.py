"""flm run: what was said is remembered, a stopped reply is kept, and no slip ends the chat."""

import os
import pty
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flm import console
from flm.cli.chat import Chat
from flm.cli.prompt import line_reader, silent_keys
from flm.cli.repl import Repl
from flm.cli.slash import COMMANDS
from flm.core.chat import Conversation, DeltaKind
from flm.core.event import Event, Finished, FinishReason, Generated, Usage
from flm.core.picture import Sight
from flm.core.prompt import Prompt
from flm.core.request import Request, SamplingParams
from flm.engine.answer import Answer
from flm.engine.reader import Reader
from flm.engine.terms import Terms
from flm.errors import PromptTooLong
from flm.models.cards import find
from flm.settings import Settings
from flm.text.dialects.tagged import PLAIN
from tests.pure import drawn

SIGHT = Sight("cells", 4, 2, 8, 4 * 8 * 8, 48 * 8 * 8, placeholder="<i>", mark="<i>")


class Echo:
    """Conversations whose replies repeat the last message, word by word.

    A message "long ..." goes on until it is cancelled; "too long" does not fit.
    """

    def __init__(self) -> None:
        self.heard: list[Conversation] = []
        self.terms: list[Terms] = []
        self.endless: tuple[str, Callable[[Event], None]] | None = None

    def chat(self, conversation: Conversation, terms: Terms, *, request_id: str) -> list[Answer]:
        text = conversation.messages[-1].content or ""
        if text == "too long":
            raise PromptTooLong(prompt_tokens=9, context_length=8)
        self.heard.append(conversation)
        self.terms.append(terms)
        request = Request(request_id, Prompt((1,)), terms.sampling, max_tokens=9)
        return [Answer(request, PLAIN.open((), False))]

    def submit(self, answer: Answer, listener: Callable[[Event], None]) -> None:
        text = self.heard[-1].messages[-1].content or ""
        for number, word in enumerate(text.split(" ")):
            listener(Generated(answer.request.id, number, " " * bool(number) + word))
        if text.startswith("long"):
            self.endless = (answer.request.id, listener)
        else:
            self._end(answer.request.id, listener, FinishReason.STOP)

    def cancel(self, answer: Answer) -> None:
        assert self.endless is not None
        self._end(*self.endless, FinishReason.CANCELLED)

    def ended(self, answer: Answer) -> None:
        assert answer.finished

    def read_ahead(self, answer: Answer) -> None:
        assert answer.finished

    def _end(self, name: str, listener: Callable[[Event], None], reason: FinishReason) -> None:
        listener(Finished(name, reason, Usage(10, 4, 3, 0.0, 0.5, 0.1)))


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def chat(echo: Echo) -> Chat:
    conversations: Any = echo
    return Chat(conversations, SamplingParams())


@pytest.fixture
def repl(chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repl:
    resident: Any = SimpleNamespace(
        card=find("smollm2:135m"),
        context_length=8192,
        reader=lambda settings: Reader("smollm2:135m", settings, resident.sight),
        sight=SIGHT,
        bundle=SimpleNamespace(family="llama"),
        device=SimpleNamespace(name="cpu"),
        close=lambda: None,
    )
    made = Repl(resident, Settings(model_path=tmp_path))
    made.chat = chat
    return made


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    console.configure()


def said(chat: Chat) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in chat.messages]


def test_each_message_is_asked_with_all_that_was_said(chat: Chat, echo: Echo) -> None:
    chat.system = "Be brief."
    assert "".join(delta.text for delta in chat.ask("one two")) == "one two"
    list(chat.ask("three"))
    assert [(m.role, m.content) for m in echo.heard[-1].messages] == [
        ("system", "Be brief."),
        ("user", "one two"),
        ("assistant", "one two"),
        ("user", "three"),
    ]
    chat.clear()
    assert said(chat) == []


def test_a_stopped_reply_is_kept_as_far_as_it_went(chat: Chat) -> None:
    reply = chat.ask("long story")
    assert next(reply).text == "long"
    reply.close()
    assert said(chat) == [("user", "long story"), ("assistant", "long")]


def test_a_thought_is_shown_but_not_remembered(chat: Chat) -> None:
    kinds = {delta.kind for delta in chat.ask("<think>hm </think> yes")}
    assert kinds == {DeltaKind.REASONING, DeltaKind.CONTENT}
    assert "hm" not in (chat.messages[-1].content or "")


def test_ctrl_c_stops_the_reply_and_not_the_program(
    repl: Repl, echo: Echo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["long story", KeyboardInterrupt(), "next", "/bye", "never"])
    shown: list[str] = []

    def write(text: str, **_: object) -> None:
        shown.append(text)
        if echo.endless and text == " story":
            raise KeyboardInterrupt

    def read() -> str:
        line = next(lines)
        if isinstance(line, KeyboardInterrupt):
            raise line
        return line

    monkeypatch.setattr(console, "write", write)
    repl.run(read)
    assert "\n(stopped)\n" in shown
    assert [message for role, message in said(repl.chat) if role == "user"] == [
        "long story",
        "next",
    ]


def test_a_slip_is_told_and_the_chat_goes_on(
    repl: Repl, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("too long", "/nonsense", "/set temp hot", "/set x 1", "/input none.txt", "/load"):
        repl.take(line)
        err = capsys.readouterr().err
        assert err.startswith("[ERROR]  "), line
        assert len(err.splitlines()) == 2, line
    repl.take("still here")
    assert capsys.readouterr().out == "still here\n"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two pictures, whose names are no trifle."""
    paths = [tmp_path / "a photo.png", tmp_path / "other.png"]
    for number, path in enumerate(paths, 2):
        path.write_bytes(drawn.file(drawn.image(size=(8 * number, 16))))
    return list(map(str, paths))


def shown(echo: Echo) -> list[tuple[int, ...]]:
    return [tuple(p.width for _, p in m.pictures) for m in echo.heard[-1].messages]


@pytest.mark.parametrize("ways", [["/input"], ["/image"], ["/image", "/image"]])
def test_pictures_go_with_a_question(
    repl: Repl, echo: Echo, files: list[str], ways: list[str]
) -> None:
    wanted = [(16,), (16, 24)][len(ways) - 1]
    for way, path in zip(ways[:-1], files[1:], strict=False):
        repl.take(f'{way} "{path}"')
    assert echo.heard == []
    repl.take(f'{ways[-1]} "{files[0]}" what is this?')
    assert sorted(shown(echo)[-1]) == list(wanted)
    assert echo.heard[-1].messages[-1].content == "what is this?"
    repl.take("and now?")
    assert shown(echo) == [shown(echo)[0], (), ()], "shown once, and remembered"


def test_several_pictures_stand_in_the_order_they_are_named(
    repl: Repl, echo: Echo, files: list[str]
) -> None:
    repl.take(f'/image "{files[0]}" {files[1]} what differs in other.png?')
    assert shown(echo) == [(16, 24)]
    assert echo.heard[-1].messages[-1].content == "what differs in other.png?"
    repl.take("/history")


def test_a_question_that_does_not_fit_leaves_its_pictures(
    repl: Repl, echo: Echo, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    repl.take(f'/image "{files[0]}" too long')
    assert "[ERROR]" in capsys.readouterr().err
    repl.take("shorter")
    assert shown(echo) == [(16,)]
    repl.take("/history")
    assert "user: [1 picture] shorter\n" in capsys.readouterr().out


def test_who_does_not_see_says_so(
    repl: Repl, echo: Echo, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    repl.resident.sight = None  # type: ignore[misc]
    repl.take(f'/image "{files[0]}" what is this?')
    told = capsys.readouterr().err
    assert "a photo.png is an image of 16 by 16 pixels, and smollm2:135m reads text only" in told
    assert "flm list says which" in told
    assert echo.heard == []


def test_what_is_no_picture_is_told_with_its_path(
    repl: Repl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torn.png").write_bytes(drawn.file(drawn.image())[:60])
    (tmp_path / "song.mp3").write_bytes(b"ID3\xff\xfb\x90")
    for line, wanted in (
        (f"/image {tmp_path}/torn.png", "torn.png, an image, is damaged"),
        (f"/image {tmp_path}/none.png", "none.png cannot be read"),
        (f"/image {tmp_path}/song.mp3", "song.mp3, an image, is none of png"),
        (f"/input {tmp_path}/song.mp3", "song.mp3 is neither UTF-8 text nor a picture"),
        ("/image", "/image needs a file"),
    ):
        repl.take(line)
        assert wanted in capsys.readouterr().err


def test_a_wrong_name_closes_no_model(repl: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    closed: list[bool] = []
    repl.resident.close = lambda: closed.append(True)  # type: ignore[method-assign]
    repl.take("/load nope")
    assert "Model not found: nope" in capsys.readouterr().err
    assert not closed


def test_a_terminal_shows_no_keys_while_a_reply_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        for after in ("", "stopped"):
            with suppress(KeyboardInterrupt), silent_keys():
                assert not termios.tcgetattr(theirs)[3] & termios.ECHO
                if after:
                    raise KeyboardInterrupt
            assert termios.tcgetattr(theirs)[3] & termios.ECHO
    os.close(ours)


def test_set_alone_shows_what_there_is(repl: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    repl.take("/set")
    out = capsys.readouterr().out
    assert "temp: " in out
    assert "topk:       off" in out


def test_set_changes_how_the_next_reply_is_chosen(repl: Repl, echo: Echo) -> None:
    for line in ("/set temp 0.25", "/set topk 3", "/set gen-lim 7", "/set sys-msg Be kind.", "hi"):
        repl.take(line)
    assert (echo.terms[-1].sampling.temperature, echo.terms[-1].sampling.top_k) == (0.25, 3)
    assert echo.terms[-1].max_tokens == 7
    assert echo.heard[-1].messages[0].content == "Be kind."


def test_a_file_is_put_behind_the_question(repl: Repl, echo: Echo, tmp_path: Path) -> None:
    (tmp_path / "my notes.txt").write_text("Buy milk.")
    repl.take(f'/input "{tmp_path}/my notes.txt" What must I do?')
    assert echo.heard[-1].messages[-1].content == "What must I do?\n\nBuy milk."


def test_save_writes_what_history_shows(repl: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    repl.take("hello")
    capsys.readouterr()
    repl.take("/history")
    shown = capsys.readouterr().out
    assert shown == "user: hello\nassistant: hello\n"
    repl.take("/save")
    (file,) = (repl.settings.model_path / "history").iterdir()
    assert file.read_text() == shown


def test_verbose_shows_time_and_speeds(repl: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    repl.take("/verbose")
    repl.take("hello")
    out = capsys.readouterr().out
    assert "Time to first token: 0.50 s (4 of 10 tokens kept)" in out
    assert "Prefill speed:       12.0 tokens/s" in out
    assert "Decoding speed:      20.0 tokens/s" in out


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"load", "pull", "input", "image", "kept"}))
def test_every_command_without_a_word_after_it_works(
    repl: Repl, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repl.take(f"/{name}")
    out, err = capsys.readouterr()
    assert err == ""
    assert out or name in ("bye", "exit", "history")


def test_help_lists_every_command(repl: Repl, capsys: pytest.CaptureFixture[str]) -> None:
    repl.take("/?")
    out = capsys.readouterr().out
    assert all(f"/{name}" in out for name in COMMANDS)


def test_what_was_typed_is_for_its_owner_only(tmp_path: Path) -> None:
    history = tmp_path / "history" / "prompts"
    history.parent.mkdir(mode=0o755)
    line_reader(history, ())
    assert history.parent.stat().st_mode & 0o777 == 0o700
