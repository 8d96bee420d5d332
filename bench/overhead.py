"""What the server adds to a streamed token: `python -m bench.overhead`.

The engine over the null device makes a token every few milliseconds, each of which goes out as a
chunk of its own, to a client in another process. Counted is the processor time that this process
takes for a token, less what it takes when nobody but a counter listens: events across threads,
deltas, JSON, SSE, HTTP and the socket. Then the same as fast as the engine goes, in tokens a
second, where what is ready together goes out together.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.rows import keep
from flm import console
from flm.core.chat import Conversation, Message
from flm.core.event import Event, Failed, Finished
from flm.core.request import SamplingParams
from flm.engine.conversation import Conversations
from flm.engine.terms import Terms
from tests.server.house import SETTINGS, House, open_house, serving

TOKENS, CONTEXT_LENGTH, RUNS = 2000, 8192, 3
TOKEN_S = 0.002  # between two tokens, so that each goes alone

CLIENT = """
import json, socket, sys
host, port, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
body = json.dumps({"model": "tiny:1m", "messages": [{"role": "user", "content": "go"}],
                   "max_tokens": tokens, "stream": True}).encode()
with socket.create_connection((host, port)) as connection:
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\n"
                       b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
    received = b""
    while b"[DONE]" not in received[-64:]:
        piece = connection.recv(1 << 20)
        assert piece, received[-500:]
        received += piece
print(received.count(b"data: {"))
"""

Run = tuple[float, float]  # processor seconds, seconds


def count_only(house: House) -> None:
    ended = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            ended.set()

    conversations = Conversations(house.resident)
    asked = Terms(SamplingParams(), max_tokens=TOKENS)
    hello = Conversation((Message("user", "go"),))
    (answer,) = conversations.chat(hello, asked, request_id=f"bench-{time.monotonic_ns()}")
    conversations.submit(answer, listen)
    ended.wait()


def measure(house: House, work: Callable[[], object]) -> Run:
    """The best of several runs."""
    runs = []
    for _ in range(RUNS):
        house.say("x", end=False)
        start = time.process_time(), time.perf_counter()
        work()
        runs.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return min(runs)


def main() -> None:
    console.configure(level="error")
    settings = replace(SETTINGS, log_level="error")
    with (
        tempfile.TemporaryDirectory() as folder,
        open_house(Path(folder), settings, context_length=CONTEXT_LENGTH) as house,
        serving(house.residence, settings) as url,
    ):
        host, port = url.removeprefix("http://").split(":")
        command = [sys.executable, "-c", CLIENT, host, port, str(TOKENS)]
        counts: list[int] = []
        over_http = lambda: counts.append(int(subprocess.check_output(command)))  # noqa: E731
        full_speed = measure(house, over_http)
        house.during_passes(lambda: (threading.Event().wait(TOKEN_S), None)[1])
        alone = measure(house, lambda: count_only(house))
        served = measure(house, over_http)
    keep(
        "overhead",
        "server overhead a token, ms",
        engine=alone[0] / TOKENS * 1e3,
        served=served[0] / TOKENS * 1e3,
        overhead=(served[0] - alone[0]) / TOKENS * 1e3,
        most=0.3,
        chunks_per_token=counts[-1] / TOKENS,
        full_speed_tokens_per_s=TOKENS / full_speed[1],
    )


if __name__ == "__main__":
    main()
