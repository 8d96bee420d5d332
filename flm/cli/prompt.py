"""Reading what a person types: history, several lines, and Ctrl-C that only clears the line."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


def line_reader(history: Path, commands: Sequence[str]) -> Callable[[], str]:
    """A function that asks for one message. It raises EOFError on Ctrl-D, KeyboardInterrupt on
    Ctrl-C. What was typed is in `history`, for its owner only, or else in memory."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    kept: History = InMemoryHistory()
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        history.parent.chmod(0o700)
        history.touch()
        kept = FileHistory(str(history))
    except OSError:
        pass  # a chat needs no history
    session: PromptSession[str] = PromptSession(
        history=kept,
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation="... ",
    )
    return lambda: session.prompt(">>> ")


@contextmanager
def silent_keys() -> Iterator[None]:
    """What is typed meanwhile does not show in the reply; the next prompt reads it."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    silent = before.copy()
    silent[3] &= ~termios.ECHO  # 3: the local modes
    termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _keys() -> "KeyBindings":
    """Enter sends, unless the line ends in a backslash; Alt-Enter begins a new line."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: "KeyPressEvent") -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: "KeyPressEvent") -> None:
        event.current_buffer.insert_text("\n")

    return keys
