"""Told to stop: SIGINT or SIGTERM once lets who runs end, a second time does not wait."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopping:
    """`told` the first time, `hurried` the second."""

    def __init__(self) -> None:
        self.told, self.hurried = asyncio.Event(), asyncio.Event()

    def tell(self) -> None:
        (self.hurried if self.told.is_set() else self.told).set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """To signals, which are for the main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.tell)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
