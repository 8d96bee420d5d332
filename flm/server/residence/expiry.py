"""When what is loaded goes because nobody asks it: so many seconds after it was last in use."""

import asyncio
import time
from collections.abc import Callable


class Expiry:
    def __init__(self, usual_s: float | None, expire: Callable[[], None]) -> None:
        """None: it stays for ever. `expire` is called on the event loop."""
        self._usual_s = usual_s
        self._expire = expire
        self.seconds = usual_s
        self._unused_since: float | None = None  # Unix time; None: it is in use
        self._timer: asyncio.TimerHandle | None = None

    @property
    def at(self) -> float | None:
        """Unix time, if it is not in use again before."""
        if self.seconds is None:
            return None
        return self.seconds + (self._unused_since or time.time())

    def loaded(self) -> None:
        """Anew: what was said of the one before is over."""
        self.seconds = self._usual_s
        self.unused()

    def used(self) -> None:
        self._stop()
        self._unused_since = None

    def unused(self) -> None:
        self._stop()
        self._unused_since = time.time()
        if self.seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.seconds, self._expire)

    def _stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None
