"""Who waits for which model: models have their turns in order of arrival, and a turn is everybody's
who waits for that model by then.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from flm.engine.residency import Resident
from flm.errors import FlmError, QueueFull


@dataclass(eq=False, slots=True)
class Guest:
    """A request from its arrival to its end. `cut` ends it early, once it runs."""

    resident: Resident | None = None  # stays loaded
    cut: Callable[[FlmError], None] | None = None


@dataclass(eq=False, slots=True)
class _Waiter:
    guest: Guest
    text: str
    let_in: "asyncio.Future[None]"


class Turns:
    """Models by what to load them by. `changed` is called when somebody comes or leaves."""

    def __init__(self, count_max: int, changed: Callable[[], None]) -> None:
        self._count_max = count_max
        self._changed = changed
        self._waiting: list[_Waiter] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next(self) -> str:
        """Whose turn it is; there must be somebody."""
        return self._waiting[0].text

    def wanted(self, text: str) -> bool:
        return any(each.text == text for each in self._waiting)

    async def wait(self, guest: Guest, text: str) -> None:
        """Until `begin` lets the guest in. Raises QueueFull, and what `end` was given."""
        if len(self._waiting) >= self._count_max:
            raise QueueFull(
                f"{self._count_max} requests wait for other models already",
                fix="wait, or start with a larger --q-len",
            )
        waiter = _Waiter(guest, text, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._changed()
        try:
            await waiter.let_in
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._changed()

    def begin(self, text: str, enter: Callable[[Guest], None]) -> None:
        """All who wait for it are in."""
        for waiter in self._taken(text):
            enter(waiter.guest)
            waiter.let_in.set_result(None)

    def end(self, error: FlmError, text: str | None = None) -> None:
        """All who wait for it, or for any, are told why it will not be."""
        for waiter in self._taken(text):
            waiter.let_in.set_exception(error)

    def _taken(self, text: str | None) -> list[_Waiter]:
        taken = [each for each in self._waiting if text in (None, each.text)]
        self._waiting = [each for each in self._waiting if each not in taken]
        return [each for each in taken if not each.let_in.done()]
