"""What people read: FastFlowLM's `[FLM]  message` lines, the request line, progress bars.

Nothing else prints. A line goes out whole, from any thread; a reader that went away is no error.
Colour and moving bars only where there is a terminal to show them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")
GREEN, YELLOW, RED = "32", "33", "31"
REPORT_INTERVAL_S = 2.0  # between two progress lines where bars cannot move

_lock = threading.Lock()
_level = LEVELS.index("info")
_bars = True


def configure(*, level: str = "info", bars: bool = True) -> None:
    """What is printed from now on; `bars` False keeps progress still even on a terminal."""
    global _level, _bars
    _level, _bars = LEVELS.index(level), bars


def debugging() -> bool:
    return _level == LEVELS.index("debug")


def say(message: str, *, header: str = "FLM", colour: str | None = None) -> None:
    if _level <= LEVELS.index("info"):
        write(f"[{header}]  {message}\n", colour=colour)


def debug(message: str) -> None:
    if debugging():
        write(f"[DEBUG]  {message}\n")


def warn(message: str) -> None:
    if _level <= LEVELS.index("warning"):
        write(f"[WARNING]  {message}\n", to=sys.stderr, colour=YELLOW)


def fail(message: str, *, fix: str = "") -> None:
    """What happened and, below it, what to do about it."""
    advice = f"\n         {fix}" if fix else ""
    write(f"[ERROR]  {message}{advice}\n", to=sys.stderr, colour=RED)


def request(
    *,
    method: str,
    path: str,
    status: int,
    model: str = "",
    prompt_tokens: int = 0,
    cached_tokens: int = 0,
    tier: str = "",
    kind: str = "",
    completion_tokens: int = 0,
    wait_s: float = 0.0,
    first_s: float = 0.0,
    read_s: float = 0.0,
    write_s: float = 0.0,
    ending: str = "",
    request_id: str = "",
) -> None:
    """The one line of a request, its columns fixed: how much of the prompt was kept, where and as
    what. Times in seconds: waiting to be read, arrival to first token, reading the prompt, writing
    the reply. What took no time that is known, as of one that was refused or left, is a dash."""
    wait, first = (f"{each:.3f}" if first_s > 0 else "-" for each in (wait_s, first_s))
    read = f"{(prompt_tokens - cached_tokens) / read_s:,.1f}" if read_s > 0 else "-"
    written = f"{(completion_tokens - 1) / write_s:,.1f}" if write_s > 0 else "-"
    say(
        f"{time.strftime('%H:%M:%S')}  {status}  in {prompt_tokens:>7,}  kept {cached_tokens:>7,}"
        f" {tier:<4} {kind:<6}  out {completion_tokens:>6,}"
        f"  wait {wait:>7} s  first {first:>7} s"
        f"  read {read:>8} tok/s  write {written:>6} tok/s  {ending:<9}"
        f"  {method} {path}  {model}  {request_id}".rstrip(),
        colour=None if status < 400 else YELLOW,
    )


def write(text: str, *, to: TextIO | None = None, colour: str | None = None) -> None:
    """Text as it is, in colour on a terminal."""
    to = to or sys.stdout
    if colour and _is_terminal(to) and _colours():
        text = f"\033[{colour}m{text}\033[0m"
    with _lock:
        try:
            to.write(text)
            to.flush()
        except BrokenPipeError:
            # Nobody reads any more; the work goes on, and the flush at exit stays quiet.
            os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None]]:
    """Takes a fraction from 0 to 1 and shows it: a bar, or off a terminal a line now and then."""
    if _level > LEVELS.index("info"):
        yield lambda fraction: None
    elif _bars and _is_terminal(sys.stdout):
        with _moving(bytes_=False) as advance:
            yield lambda fraction: advance(what, fraction, 1.0)
    else:
        report = _Report()
        yield lambda fraction: report(fraction, 1.0, f"{what}: {fraction:.0%}")


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int], None]]:
    """Takes (file, bytes so far, bytes in all) and shows it, off a terminal as FastFlowLM does."""
    if _level > LEVELS.index("info"):
        yield lambda file, done, total: None
    elif _bars and _is_terminal(sys.stdout):
        with _moving(bytes_=True) as advance:
            yield advance
    else:
        report = _Report()

        def show(file: str, done: int, total: int) -> None:
            sizes = f"{done / 2**20:.1f}MB / {total / 2**20:.1f}MB"
            share = f"{done / total:.1%} ({sizes})" if total else f"{done / 2**20:.1f}MB"
            report(done, total, f"Downloading: {share}")

        yield show


class _Report:
    """Progress as lines: at most one every few seconds, and one at the end."""

    def __init__(self) -> None:
        self._due = time.monotonic() + REPORT_INTERVAL_S
        self._ended = False

    def __call__(self, done: float, total: float, line: str) -> None:
        ended, self._ended = self._ended, 0 < total <= done
        if self._ended > ended or (time.monotonic() >= self._due and not ended):
            self._due = time.monotonic() + REPORT_INTERVAL_S
            say(line)


@contextmanager
def _moving(*, bytes_: bool) -> Iterator[Callable[[str, float, float], None]]:
    """A bar that appears with its first report and goes without a trace."""
    with ExitStack() as stack:
        bars: Any = None
        task: Any = None

        def advance(what: str, done: float, total: float) -> None:
            nonlocal bars, task
            if bars is None:
                bars = stack.enter_context(_bar(bytes_))
                task = bars.add_task("", total=None)
            bars.update(task, completed=done, total=total or None, description=what)

        yield advance


def _bar(bytes_: bool) -> Any:
    from rich import progress as rich

    columns = [rich.TextColumn("{task.description}", markup=False), rich.BarColumn()]
    columns += [rich.TextColumn("{task.percentage:>3.0f} %"), rich.TimeRemainingColumn()]
    columns += [rich.DownloadColumn(), rich.TransferSpeedColumn()] if bytes_ else []
    return rich.Progress(*columns, transient=True)


def on_terminal() -> bool:
    """Whether what is written is seen by a person."""
    return _is_terminal(sys.stdout)


def in_colour() -> bool:
    """Whether what is written may be in colour."""
    return on_terminal() and _colours()


def _colours() -> bool:
    return "NO_COLOR" not in os.environ


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
