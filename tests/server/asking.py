"""Requests to the app of a house, without a socket: chats, unless a path says otherwise."""

import asyncio
import json
from typing import Any

import httpx

from flm.settings import Settings
from tests.server.house import SETTINGS, House, in_process

HELLO = [{"role": "user", "content": "hello"}]
CHATS, RESPONSES = "/v1/chat/completions", "/v1/responses"
USUAL: dict[str, dict[str, Any]] = {CHATS: {"messages": HELLO}, RESPONSES: {"input": "hello"}}


def post(
    house: House,
    path: str = CHATS,
    *,
    settings: Settings = SETTINGS,
    key: str = "",
    **fields: Any,
) -> httpx.Response:
    """`settings` are those of the app in front of the house, `key` opens it."""

    async def send() -> httpx.Response:
        async with in_process(house, settings) as client:
            body = {"model": "tiny:1m", **USUAL[path], **fields}
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            content = json.dumps(body)
            return await client.post(path, content=content, headers=headers)

    return asyncio.run(send())


def chat(house: House, path: str = CHATS, **fields: Any) -> dict[str, Any]:
    response = post(house, path, **fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def refused(house: House, path: str = CHATS, **fields: Any) -> dict[str, Any]:
    response = post(house, path, **fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error
