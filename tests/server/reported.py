"""Two servers with one model: one keeps prompts, one reads each from its first token.

What is asked of the first is asked of the second as well, and both must say the same.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from flm.core.prompt import Prompt
from flm.core.request import Request, SamplingParams
from flm.core.tensor import MemoryKind
from flm.memory.layout import MemoryLayout
from flm.settings import Settings
from tests.server.house import LAYOUT, STATEFUL, House, in_process, open_house
from tests.server.test_leaving import Gate

SETTINGS = Settings(
    api_keys=(), lanes=2, queue_max=8, ping_interval_s=0.1, read_ahead=False, prefix_min_gain=64
)
GREEDY: dict[str, Any] = {"model": "tiny:1m", "temperature": 0, "max_tokens": 8}
WAIT_S = 10
HELD = Request("held", Prompt((20, 21)), SamplingParams(temperature=0), max_tokens=1, reuse=False)
LAYOUTS = {"rows": LAYOUT, "state": STATEFUL}


@dataclass(frozen=True)
class Read:
    """One answer: of `length` tokens of its prompt, `cached` were not read."""

    text: str
    length: int
    cached: int


class Caller:
    """A client of one house, without a socket."""

    def __init__(self, house: House, settings: Settings = SETTINGS) -> None:
        self.house = house
        self._runner = asyncio.Runner()
        self._client = in_process(house, settings)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self._runner.run(self._client.post(path, json=GREEDY | fields, timeout=60))

    def together(self, *bodies: dict[str, Any]) -> list[Read]:
        """Chats that arrive at once: the engine is in a pass for another until all are there."""
        engine, gate = self.house.resident.thread, Gate()
        self.house.during_passes(gate)
        engine.submit(HELD, lambda event: None)
        assert gate.reached.wait(WAIT_S)

        async def send() -> list[httpx.Response]:
            posts = [
                asyncio.ensure_future(
                    self._client.post("/v1/chat/completions", json=GREEDY | body, timeout=60)
                )
                for body in bodies
            ]
            while engine.waiting < len(bodies) and not any(post.done() for post in posts):
                await asyncio.sleep(0.001)  # as long as it takes to render them
            gate.open()
            return await asyncio.gather(*posts)

        return [read_of(response) for response in self._runner.run(send())]

    def chat(self, messages: list[Any], **fields: Any) -> Read:
        return read_of(self.post("/v1/chat/completions", messages=messages, **fields))

    def complete(self, prompt: str | list[int], **fields: Any) -> Read:
        return read_of(self.post("/v1/completions", prompt=prompt, **fields))

    def check(self) -> None:
        self.house.resident.thread.ask(lambda engine: engine.check()).result()

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


@dataclass
class Servers:
    warm: Caller
    cold: Caller

    @property
    def house(self) -> House:
        return self.warm.house

    @property
    def prompt(self) -> Prompt:
        """The last."""
        return self.house.requests[-1].prompt

    def chat(self, messages: list[Any], **fields: Any) -> Read:
        return self._both("chat", messages, **fields)

    def complete(self, prompt: str | list[int], **fields: Any) -> Read:
        return self._both("complete", prompt, **fields)

    def _both(self, how: str, *asked: Any, **fields: Any) -> Read:
        before = self.house.runner.tokens_read
        warm: Read = getattr(self.warm, how)(*asked, **fields)
        read = self.house.runner.tokens_read - before
        cold: Read = getattr(self.cold, how)(*asked, **fields)
        assert (warm.text, warm.length) == (cold.text, cold.length)
        assert cold.cached == 0
        assert read == warm.length - warm.cached, "said to be cached, and read"
        self.warm.check()
        return warm


def read_of(response: httpx.Response) -> Read:
    assert response.status_code == 200, response.text
    reply = response.json()
    (choice,), usage = reply["choices"], reply["usage"]
    text = choice["text"] if "text" in choice else said(choice["message"])
    return Read(text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


def said(message: dict[str, Any]) -> str:
    return f"{message.get('reasoning_content') or ''}|{message['content'] or ''}"


@contextmanager
def two_servers(
    folder: Path, kind: str = "state", *, settings: Settings = SETTINGS, **room: Any
) -> Iterator[Servers]:
    """`kind` of LAYOUTS; `room` is for `open_house`."""
    room = {"context_length": 8192, "cache_bytes": 2**24, "layout": LAYOUTS[kind], **room}
    cold_room = {name: value for name, value in room.items() if name != "disk"}
    cold_settings = replace(settings, reuse_prompt=False)
    (folder / "cold").mkdir(exist_ok=True)
    with (
        open_house(folder, settings, **room) as warm,
        open_house(folder / "cold", cold_settings, **cold_room) as cold,
    ):
        servers = Servers(Caller(warm, settings), Caller(cold, cold_settings))
        try:
            yield servers
        finally:
            servers.warm.close()
            servers.cold.close()


def large(layout: MemoryLayout, row_bytes: int) -> MemoryLayout:
    """The same with rows of that size, over many heads: wide ones are read otherwise."""
    (rows,) = (tensor for tensor in layout.tensors if tensor.kind is MemoryKind.ROWS)
    wider = replace(rows, shape=(row_bytes // 4 // 16, 16))
    return MemoryLayout((wider, *layout.state))


def words(count: int, seed: int = 0) -> str:
    """Text that parts from that of another seed at once."""
    names = ["bird", "stone", "river", "cloud", "lamp", "glass", "paper", "wind"]
    return " ".join(names[(seed + step * (2 * seed + 1)) % 8] for step in range(count))


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}
