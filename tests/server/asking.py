"""Chat requests to the app of a house, without a socket."""

import asyncio
import json
from typing import Any

import httpx

from tests.server.house import House, in_process

HELLO = [{"role": "user", "content": "hello"}]


def post(house: House, **fields: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with in_process(house) as client:
            body = {"model": "tiny:1m", "messages": HELLO, **fields}
            return await client.post("/v1/chat/completions", content=json.dumps(body))

    return asyncio.run(send())


def chat(house: House, **fields: Any) -> dict[str, Any]:
    response = post(house, **fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def refused(house: House, **fields: Any) -> dict[str, Any]:
    response = post(house, **fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error
