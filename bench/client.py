"""One streamed request, timed: when each token's bytes arrived."""

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

REQUEST_S_MAX = 600


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds since the request was sent; `text` is the reply."""

    first_s: float
    arrivals_s: tuple[float, ...]
    text: str
    usage: dict[str, Any]

    @property
    def tokens_per_s(self) -> float:
        """After the first, by the usage's count."""
        count = int(self.usage["completion_tokens"]) - 1
        return count / (self.arrivals_s[-1] - self.first_s)


class Client:
    """Opens a connection for each request."""

    def __init__(self, url: str) -> None:
        # llama.cpp closes connections when it likes; a new one costs both sides the same.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=url, timeout=REQUEST_S_MAX, limits=limits)
        self._model = self._http.get("/v1/models").json()["data"][0]["id"]

    def chat(self, messages: list[dict[str, Any]], max_tokens: int, **fields: Any) -> Timed:
        body = {"messages": messages, "max_tokens": max_tokens, **fields}
        return self._stream("/v1/chat/completions", body)

    def complete(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> Timed:
        body = {"prompt": prompt, "max_tokens": max_tokens, **fields}
        return self._stream("/v1/completions", body)

    def _stream(self, path: str, body: dict[str, Any]) -> Timed:
        body = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            **body,
        }
        arrivals, pieces, usage = [], [], {}
        start = time.perf_counter()
        with self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise SystemExit(f"{path}: {response.status_code} {response.read().decode()}")
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices", ()):
                    text = choice.get("text") or choice.get("delta", {}).get("content") or ""
                    if text or choice.get("finish_reason"):
                        arrivals.append(time.perf_counter() - start)
                        pieces.append(text)
        return Timed(arrivals[0], tuple(arrivals), "".join(pieces), usage)
