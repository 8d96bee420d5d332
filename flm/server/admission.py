"""A request's way in: its body is read within bounds, understood, and the model that it names
waited for. Rendering and encoding grow with the prompt, so none of it is done on the event loop.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request

from flm.server.leaving import unless_left
from flm.server.residence.residence import MustWait, Residence
from flm.server.residence.turns import Guest
from flm.server.wire import parse_object, read_body
from flm.settings import Settings

T = TypeVar("T")


class Admission:
    """For routes whose requests are guests. `work` finds the model it needs in the residence."""

    def __init__(self, settings: Settings, residence: Residence) -> None:
        self._settings = settings
        self._residence = residence

    async def fields(self, request: Request) -> dict[str, Any]:
        self._residence.require_open()  # while nobody is let in, no body is worth reading
        raw = await read_body(request, self._settings)
        return await asyncio.to_thread(parse_object, raw)

    async def at_once(self, request: Request, work: Callable[[], T]) -> T:
        """What `work` gives, its model loaded until the request ends. Raises MustWait."""
        guest: Guest = request.state.guest
        self._residence.enter(guest)
        try:
            done = await asyncio.to_thread(work)
        except MustWait:
            self._residence.leave(guest)
            raise
        if self._residence.is_anothers_turn:
            raise MustWait(self._residence.text)
        return done

    async def in_turn(self, request: Request, text: str, work: Callable[[], T]) -> T:
        """After MustWait. Raises what went wrong with loading the model."""
        await self._residence.wait(request.state.guest, text)
        return await asyncio.to_thread(work)

    async def admitted(self, request: Request, work: Callable[[], T]) -> T:
        """At once or in turn. Raises ClientDisconnect if nobody is there to hear it any more."""
        try:
            return await self.at_once(request, work)
        except MustWait as must:
            text = must.text  # the error itself remembers what was loaded, which is to go
        return await unless_left(request.receive, self.in_turn(request, text, work))
