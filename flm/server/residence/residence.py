"""Which model answers. One is loaded at a time; requests for others on the shelf take turns.

Invariants:
  * What is loaded stays while a guest is in it, and as long as loading it took.
  * After that, once another model that is waited for is ready to be loaded, newcomers wait, too.
  * Ready is what is compiled and found to fit: until then, what is loaded serves.
  * A model that does not load fails those who wait for it, and nobody else.
  * All is for the event loop, but `find` and what only looks.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from flm import console
from flm.engine.beside import Beside
from flm.engine.residency import Resident
from flm.errors import (
    BadRequest,
    FlmError,
    ModelLoading,
    NoModelLoaded,
    NoRoom,
    ServerStopping,
)
from flm.server import journal
from flm.server.faults import internal
from flm.server.residence.apart import apart
from flm.server.residence.expiry import Expiry
from flm.server.residence.names import CLASSES, is_of, split_class
from flm.server.residence.promised import Promised
from flm.server.residence.shelf import Shelved, find_shelved, not_here, shelved
from flm.server.residence.turns import Guest, Turns
from flm.settings import Settings

# A model stays for as long as loading it took, within these; then others may have their turn.
STAY_S_MIN, STAY_S_MAX = 1.0, 60.0

T = TypeVar("T")

# Of a model by its name: looks at all that may go wrong, and gives what is left to do.
Prepare = Callable[[str], Callable[[], Resident]]


class MustWait(Exception):
    """The model that a request names is on the shelf; `text` is what to load it by."""

    def __init__(self, text: str, found: Shelved | None = None) -> None:
        """`found`: how it stands on the shelf, if it was looked for there."""
        super().__init__(text)
        self.text, self.found = text, found


class Residence:
    """Empty while a first model loads; `settle` moves it in."""

    def __init__(
        self,
        settings: Settings | None = None,
        prepare: Prepare | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Without `prepare` no model is but the one that is settled. `beside`: what is planned with
        when one is prepared and loaded.
        """
        self._settings = settings or Settings()
        self._prepare = prepare
        self._resident: Resident | None = None
        self.text = ""  # what the resident was loaded by
        self.settled_at = 0  # Unix time, seconds
        self._open = False  # a first model is loaded, or none was wanted
        self._stopping: ServerStopping | None = None
        self._guests: set[Guest] = set()
        self._others: set[Guest] = set()  # in no model that chats
        self.promised = Promised(beside or Beside())
        self._turns = Turns(self._settings.lanes + self._settings.queue_max, self._stir)
        self._stays_until = 0.0  # monotonic
        self._yielding = False  # the next is ready to be loaded
        self._expiry = Expiry(self._settings.keep_alive, self._expire)
        self._expired = False
        self._changed = asyncio.Event()
        self._mover: asyncio.Task[None] | None = None

    def settle(self, resident: Resident, text: str = "") -> None:
        self._resident, self.text = resident, text or resident.card.tag
        self._promise(resident)
        self.settled_at = int(time.time())
        self._open = True
        self._expiry.loaded()

    def open_empty(self) -> None:
        """The first request says which model."""
        self._open = True

    # To look.

    def require_open(self) -> None:
        """Raises ModelLoading before the server is there, ServerStopping after."""
        if self._stopping:
            raise self._stopping
        if not self._open:
            raise ModelLoading("The model is loading", fix="ask again in a few seconds")

    @property
    def here(self) -> Resident | None:
        """Raises as `require_open`."""
        self.require_open()
        return self._resident

    @property
    def resident(self) -> Resident:
        """Whatever is loaded. Raises as `here`, or NoModelLoaded."""
        resident = self.here
        if resident is None and self._moving:
            raise ModelLoading("The model is loading", fix="ask again in a few seconds")
        if resident is None:
            raise NoModelLoaded(
                "No model is loaded just now", fix="ask one that GET /v1/models lists for a reply"
            )
        return resident

    @property
    def usual(self) -> dict[str, Any]:
        """What stands in a body that names no model: the one that is loaded, if any."""
        resident = self.here
        return {"model": resident.card.tag} if resident else {}

    def shelved(self) -> list[Shelved]:
        """What else may be asked for, and what is loaded if it is on the shelf. Takes a moment."""
        return shelved(self._settings) if self._prepare else []

    @property
    def expires_at(self) -> float | None:
        """When what is loaded will go if nobody asks it, in seconds since 1970."""
        return self._expiry.at

    @property
    def waiting(self) -> int:
        """Requests for models that are not loaded."""
        return len(self._turns)

    def find(self, model: str) -> Resident:
        """The model a request names, with or without `@class` after it. On any thread.

        Raises MustWait for one that is not loaded, BadRequest, ModelNotFound, as `here`.
        """
        resident = self.here
        if not model.strip():
            named = resident.card.tag if resident else "one that GET /v1/models lists"
            raise BadRequest("model is empty", fix=f"send {named}", param="model")
        name, word = split_class(model)
        if resident and word in CLASSES and is_of(name, resident.card):
            return resident  # at once: the shelf is a walk through folders
        for each in dict.fromkeys((model, name)):
            found = self._named(each, resident)
            if found is None:
                continue
            if each != model and word not in CLASSES:
                raise BadRequest(
                    f"model asks for the class {word!r:.40}, which is none",
                    fix=f"send {name}, or {name}@agent where no person waits",
                    param="model",
                )
            if isinstance(found, Shelved):
                raise MustWait(found.text, found)
            return found
        raise not_here(name, resident.card.tag if resident else None)

    def _named(self, name: str, resident: Resident | None) -> Resident | Shelved | None:
        """What is loaded, or what else is here."""
        if resident and is_of(name, resident.card):
            return resident
        return find_shelved(name, self._settings) if self._prepare else None

    # To be in it.

    async def guest(self, request: Request) -> AsyncIterator[None]:
        """Of routes: `request.state.guest` is theirs until the reply is sent."""
        request.state.guest = guest = Guest()
        try:
            yield
        finally:
            self.leave(guest)

    def enter(self, guest: Guest) -> None:
        """Whatever is loaded now stays. Raises as `here`."""
        guest.resident = self.here
        if guest.resident:
            self._guests.add(guest)
            self._expiry.used()

    def enter_beside(self, guest: Guest) -> None:
        """A request that needs nothing of what is loaded, but is waited for when the server stops.

        Raises as `require_open`.
        """
        self.require_open()
        self._others.add(guest)

    def leave(self, guest: Guest) -> None:
        if guest in self._others:
            self._others.remove(guest)
            self._changed.set()
        if guest not in self._guests:
            return
        self._guests.remove(guest)
        guest.resident = None
        if not self._guests and self._resident:
            self._expiry.unused()
        self._changed.set()

    def keep_alive(self, seconds: float | None) -> None:
        """From now on, for what is loaded: until another says so, or it goes. None: for ever."""
        self._expiry.seconds = seconds

    @property
    def is_anothers_turn(self) -> bool:
        """Whether newcomers to what is loaded are to wait."""
        return self._yielding and time.monotonic() >= self._stays_until

    async def wait(self, guest: Guest, text: str) -> None:
        """For the turn of the model `text`. The guest is in it then.

        Raises QueueFull, ServerStopping, and what went wrong with loading it.
        """
        self.leave(guest)
        self.require_open()
        try:
            await self._turns.wait(guest, text)
        except BaseException:  # its client may have left as it was let in
            self.leave(guest)
            raise

    # To move.

    @property
    def _moving(self) -> bool:
        return self._mover is not None and not self._mover.done()

    def _stir(self) -> None:
        self._changed.set()
        if not self._moving:
            self._mover = asyncio.create_task(self._move())

    async def _move(self) -> None:
        while self._turns or self._expired:
            if self._expired:
                self._expired = False
                if not self._guests and not self._turns.wanted(self.text):
                    await self._unload()
                    self.promised.left.clear()
                    self.promised.chats = 0
            elif self._resident is None or self._turns.next != self.text:
                await self._bring(self._turns.next)
            else:
                self._turns.begin(self.text, self.enter)
        if self._resident is None and self.promised.left.slot_count:
            self._expiry.unused()  # the next did not come: what was left goes as if it were loaded

    def _ready(self, text: str) -> Callable[[], Resident]:
        """How to load it. On a thread of its own."""
        assert self._prepare is not None
        return self._with_room(partial(self._prepare, text))

    def _loaded(self, load: Callable[[], Resident]) -> Resident:
        """On a thread of its own."""
        with self.promised.turn:
            resident = self._with_room(load)
            self._promise(resident)
        return resident

    def _with_room(self, work: Callable[[], T]) -> T:
        """What it gives, once encoders that nobody uses have gone if they are in its way."""
        try:
            return work()
        except NoRoom:
            if not self.promised.let_go():
                raise
        return work()

    def _promise(self, resident: Resident) -> None:
        self.promised.chats = resident.plan.total - resident.plan.beside

    async def _bring(self, text: str) -> None:
        try:
            load = await apart(partial(self._ready, text), name="prepare")
            self._yielding = True
            if not await self._vacated(text):
                return
            began = time.monotonic()
            resident = await apart(partial(self._loaded, load), name="load")
        except Exception as error:
            if not isinstance(error, FlmError):
                journal.note_mistake(error)
            self._turns.end(internal(error), text)
            return
        finally:
            self._yielding = False
        self.settle(resident, text)
        stay_s = min(max(time.monotonic() - began, STAY_S_MIN), STAY_S_MAX)
        self._stays_until = time.monotonic() + stay_s
        self._turns.begin(text, self.enter)

    async def _vacated(self, text: str) -> bool:
        """Nothing is loaded any more; or, False, nobody waits for `text` any more."""
        while self._turns.wanted(text):
            rest_s = self._stays_until - time.monotonic()
            if self._resident is None:
                return True
            if not self._guests and rest_s <= 0:
                await self._unload()
                continue
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s if rest_s > 0 else None):
                    await self._changed.wait()
        return False

    async def _unload(self) -> None:
        if self._resident is None:
            return
        console.say(f"Unloading model: {self._resident.card.tag}")
        held, self._resident = [self._resident], None
        self._expiry.used()
        try:
            await apart(partial(_let_go, held), name="unload")
        except Exception as error:  # it is gone, if not well
            journal.note_mistake(error)
        self.promised.left.stay()
        self.promised.chats = self.promised.left.bytes

    def _expire(self) -> None:
        self._expired = True
        self._stir()

    # To go.

    def stop(self) -> int:
        """Nobody comes in any more, and who waits for a model is told so; how many are in it."""
        self._stopping = ServerStopping("The server is stopping", fix="ask again once it is back")
        self._turns.end(self._stopping)
        return len(self._guests) + len(self._others)

    async def emptied(self) -> None:
        while self._guests or self._others:
            self._changed.clear()
            await self._changed.wait()

    def cut(self) -> None:
        """Who is still in it is told that the server is stopping."""
        assert self._stopping
        for guest in [*self._guests, *self._others]:
            if guest.cut:
                guest.cut(self._stopping)

    async def close(self, flush_s: float, hurried: asyncio.Event) -> None:
        """Once it is stopped: what is loaded goes, without its time to flush when hurried."""
        if self._mover:
            self._mover.cancel()
        resident, self._resident = self._resident, None
        if resident is None:
            return
        closing = apart(partial(resident.close, 0.0 if hurried.is_set() else flush_s), name="close")
        hurrying = asyncio.create_task(hurried.wait())
        await asyncio.wait((closing, hurrying), return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            resident.hurry()
        hurrying.cancel()
        await closing


def _let_go(held: list[Resident]) -> None:
    """The only one of them. Its memory is wanted now: its parts know of each other, so without this
    they would lie there till Python happens to look.
    """
    held.pop().close()
    gc.collect()
