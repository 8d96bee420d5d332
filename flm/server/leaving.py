"""Clients that leave before they have their answer, or take nothing of it any more."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):
    """The connection is gone; nobody is there to answer."""

    ending = "left"


class ClientStalled(ClientLeft):
    """The connection stands, but nothing is read from it."""

    ending = "stalled"


async def left(receive: Receive) -> None:
    """Until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` gives; cancelled, and ClientDisconnect raised, once the client is gone."""
    working, leaving = asyncio.ensure_future(work), asyncio.create_task(left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
