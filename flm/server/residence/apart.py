"""Work that takes long, on a thread of its own, apart from the event loop.

Not in the loop's pool, which would be waited for when the server is told to stop.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def apart(work: Callable[[], T], *, name: str) -> "asyncio.Future[T]":
    """What `work` gives or raises. The thread ends with the process, whatever it is at."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not future.done():  # nobody waits for it any more
            outcome()

    def run() -> None:
        try:
            given = work()
        except BaseException as error:
            outcome = _raiser(future, error)
        else:
            outcome = _giver(future, given)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _raiser(future: "asyncio.Future[T]", error: BaseException) -> Callable[[], None]:
    return lambda: future.set_exception(error)


def _giver(future: "asyncio.Future[T]", given: T) -> Callable[[], None]:
    return lambda: future.set_result(given)
