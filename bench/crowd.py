"""Many connections for minutes: 64 that do nothing and 16 that never cease, before four lanes.

    python -m bench.crowd [--minutes 10]

A real server on real sockets in a process of its own, over the null device; only there is little
room, so that lanes are parked and people wait. Half of the active are programs, half persons; some
hang up in the middle of a reply. All that is not hung up on is answered, nothing is left behind,
and the server's memory is flat if its slope after the warm-up is near none. That takes some three
minutes: the tokenizer's library remembers 10,000 words in each thread that encodes, near 5 MiB.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import httpx
import psutil

from bench.rows import keep
from bench.soak import CHARS_MAX, grown
from flm import console
from flm.core.request import Priority
from flm.core.sizes import MIB
from flm.prefix.tally import PARKED
from tests.server.house import SETTINGS, STATEFUL, open_house, serving

IDLE, ACTIVE, LANES, QUEUE = 64, 16, 4, 8
CONTEXT_LENGTH, CHUNK_LEN = 2048, 128
CACHE_BYTES, PARKED_BYTES = 2 * MIB, MIB // 8
LEAVES = 0.1  # of all replies
WORDS = ["the", "of", "a", "to", "in", "is", "it", "for", "on", "with", "as", "by", "at", "from"]
CHATS = "/v1/chat/completions"


def serve(folder: Path) -> None:
    """Says its address, serves until its input ends, and then what it has seen."""
    console.configure(level="error")
    settings = replace(SETTINGS, lanes=LANES, queue_max=QUEUE, read_ahead=True)
    with open_house(
        folder,
        settings,
        context_length=CONTEXT_LENGTH,
        layout=STATEFUL,
        cache_bytes=CACHE_BYTES,
        chunk_len_max=CHUNK_LEN,
        parked_bytes=PARKED_BYTES,
        chars_max=CHARS_MAX,
    ) as house:

        def forget() -> None:
            """What tests look at, and nobody does here."""
            for noted in (house.requests, house.log, house.warnings):
                noted.clear()

        house.during_passes(forget)
        with serving(house.residence, settings) as url:
            print(url, flush=True)
            sys.stdin.read()
            thread = house.resident.thread
            while not thread.idle or thread.running:
                time.sleep(0.01)
            seen = {
                "parked": int(thread.cache.tally.of(PARKED)),
                "left_behind": sum(thread.standing.values()) + thread.parked.host_bytes,
                "leases": len(thread.cache.leases),
            }
        print(json.dumps(seen), flush=True)


class Guest(threading.Thread):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, url: str, number: int, over: threading.Event) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.first_s: list[float] = []
        self.failure = ""
        self._url, self._over, self._random = url, over, Random(number)
        self._agent = number % 2 == 0
        self._system = f"You are {number % 6}. " + self._words(Random(number % 6), 120)

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._url, timeout=120) as client:
                while not self._over.is_set():
                    self._ask(client)
        except Exception as error:  # told by the main thread
            self.failure = repr(error)

    def _ask(self, client: httpx.Client) -> None:
        said = self._words(self._random, self._random.randint(5, 300 if self._agent else 40))
        messages = [{"role": "system", "content": self._system}, {"role": "user", "content": said}]
        body = {
            "model": "tiny:1m@agent" if self._agent else "tiny:1m",
            "messages": messages,
            "max_tokens": self._random.randint(8, 60),
            "stream": True,
        }
        leaves, began = self._random.random() < LEAVES, time.monotonic()
        with client.stream("POST", CHATS, json=body) as reply:
            if reply.status_code == 429:
                self.seen["refused"] += 1
                self._over.wait(min(1.0, float(reply.headers["retry-after"])))
                return
            assert reply.status_code == 200, reply.status_code
            last, begun = "", False
            for line in reply.iter_lines():
                if not begun and line.startswith("data: ") and '"content":""' not in line:
                    begun = True
                    self.first_s.append(time.monotonic() - began)
                    if leaves:
                        self.seen["left"] += 1
                        return
                last = line or last
            assert last == "data: [DONE]", last
            self.seen["answered"] += 1

    def _words(self, random: Random, number: int) -> str:
        return " ".join(random.choices(WORDS, k=number))


@dataclass(frozen=True, slots=True)
class Crowd:
    """What was seen of it. `samples` are of the server's memory, in MiB, at a second each."""

    guests: list[Guest]
    samples: list[tuple[float, float]]
    parked: int
    idle_reopened: int


def crowd(minutes: float, folder: Path) -> Crowd:
    """Every guest is answered, and nothing is left behind."""
    command = [sys.executable, "-m", "bench.crowd", "--serve", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        url = server.stdout.readline().strip()
        process, over = psutil.Process(server.pid), threading.Event()
        host, port = url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(IDLE)]
        guests = [Guest(url, number, over) for number in range(ACTIVE)]
        for guest in guests:
            guest.start()
        began, samples, reopened = time.monotonic(), list[tuple[float, float]](), 0
        while (spent := time.monotonic() - began) < 60 * minutes:
            time.sleep(1)
            samples.append((spent, process.memory_info().rss / MIB))
            for at, connection in enumerate(idle):
                if not _is_open(connection):  # the server has lost patience
                    connection.close()
                    idle[at], reopened = socket.create_connection((host, int(port))), reopened + 1
        over.set()
        for guest in guests:
            guest.join()
        for connection in idle:
            connection.close()
        server.stdin.close()
        seen = json.loads(server.stdout.read())
    failures = [guest.failure for guest in guests if guest.failure]
    assert not failures, failures
    assert not seen["left_behind"] + seen["leases"], seen
    return Crowd(guests, samples, seen["parked"], reopened)


def report(seen: Crowd) -> None:
    minutes = round(seen.samples[-1][0] / 60, 1)
    counts: Counter[str] = sum((guest.seen for guest in seen.guests), Counter())
    first = {
        kind: sorted(each for guest in seen.guests[start::2] for each in guest.first_s)
        for start, kind in enumerate((Priority.AGENT.value, Priority.INTERACTIVE.value))
    }
    keep(
        "crowd",
        f"{IDLE} idle and {ACTIVE} active connections, {LANES} lanes, {minutes:g} minutes",
        answered=counts["answered"],
        left=counts["left"],
        refused=counts["refused"],
        parked=seen.parked,
        idle_reopened=seen.idle_reopened,
        first_token_s={kind: round(times[len(times) // 2], 3) for kind, times in first.items()},
        first_token_p95_s={
            kind: round(times[len(times) * 95 // 100], 3) for kind, times in first.items()
        },
        **grown(seen.samples),
    )


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
    else:
        with tempfile.TemporaryDirectory() as home:
            report(crowd(given.minutes, Path(home)))
