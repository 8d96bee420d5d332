"""A day of traffic in minutes: real engine, prefix cache, boundaries, disk, ghosts and idle work.

    python -m bench.soak [--minutes 10]

The model is the null device, whose passes cost next to nothing, and the clock is the traffic's:
people chat, agents loop through tools, one-shots come and are cancelled, under several domains.
Memory is small, so that snapshots are written, given up and read back all the time. `check` runs
every second, and every request ends. Memory is flat if its slope after warm-up is near none.
"""

import argparse
import gc
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil

from bench.rows import keep
from flm.core.chat import Conversation, Message, ToolCall
from flm.core.event import Failed, Finished, FinishReason, Generated
from flm.core.prompt import Prompt
from flm.core.request import Priority, Request, SamplingParams
from flm.core.sizes import MIB
from flm.core.tensor import MemoryKind
from flm.devices.null import NullDevice, write_model
from flm.engine.engine import Engine
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.prefix.boundaries import BoundaryFinder
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.identity import Identity, layout_hash
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.tier import DiskTier
from flm.prefix.eviction import pinning
from flm.prefix.tally import EVICTIONS, HITS, MISSES, READ, REUSED
from flm.runner.runner import Runner
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
LAYOUT = MemoryLayout(
    (
        MemoryTensor("keys", MemoryKind.ROWS, (2, 16)),
        MemoryTensor("values", MemoryKind.ROWS, (2, 16)),
        MemoryTensor("state", MemoryKind.STATE, (64, 64)),
    )
)
CONTEXT_LENGTH, LANES, QUEUE = 4096, 4, 16
CACHE_BYTES, DISK_BYTES, GHOST_BYTES = 4 * MIB, 16 * MIB, 2 * MIB
CHARS_MAX = 2**18  # remembered of prompts: as the rest, so little that it is full after minutes
COMPRESSED = 24 * 3600 / 600  # a day in ten minutes
WARM_UP = 0.3  # of the time, before memory is looked at
DOMAINS = ("", "key-1", "key-2", "salted")
GREEDY = SamplingParams(temperature=0)
WORDS = ["the", "of", "a", "to", "in", "is", "it", "for", "on", "with", "as", "by", "at", "from"]
Ask = tuple[Conversation, str, Priority, bool]  # what, whose, how urgent, and is it cancelled


class Day:
    """The clock, the engine and what it has to show. `now_s` is since the day began."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.now_s = Random(seed), 0.0
        self.tokenizer = Tokenizer.load(FIXTURES / "tokenizer")
        source = (FIXTURES / "templates" / "tools_first.jinja").read_text()
        template = ChatTemplate(source, bos_token="", eos_token="<|im_end|>")
        self.finder = BoundaryFinder(template, self.tokenizer, chars_max=CHARS_MAX)
        device = NullDevice()
        vocabulary = self.tokenizer.vocabulary
        lanes = Lanes(device, LAYOUT, count=LANES, capacity_max=CONTEXT_LENGTH + 1)
        memory = [(t.name, t.kind, t.shape, t.dtype) for t in LAYOUT.tensors]
        graph = write_model(folder / "model.json", memory, vocabulary=vocabulary)
        self.disk = DiskTier(
            DiskStore(
                folder / "disk", _identity(), LAYOUT, bytes_max=DISK_BYTES, free_min_bytes=0,
                warn=_fail,
            )
        )  # fmt: skip
        self.cache = PrefixCache(
            bytes_max=CACHE_BYTES, slots_max=None, gain_min=64, row_bytes=LAYOUT.row_bytes,
            state_bytes=LAYOUT.state_bytes, log=_ignore, warn=_ignore, read_min=2, policy=pinning,
            ghosts_max=GHOST_BYTES, disk=self.disk, clock=lambda: self.now_s,
        )  # fmt: skip
        self.engine = Engine(
            Runner(device.load(graph), device, LAYOUT, lanes, vocabulary=vocabulary),
            self.cache, self.tokenizer, lanes=lanes, context_length=CONTEXT_LENGTH,
            queue_max=QUEUE, chunk_len_max=512, chunk_s_target=0.25, clock=lambda: self.now_s,
            audit_every=50,
        )  # fmt: skip
        self.names = count()
        self.open: dict[str, bool] = {}  # request id -> is it to be cancelled
        self.calling: dict[str, Prompt] = {}  # of agents, whose replies call a tool
        self.ended: Counter[str] = Counter()

    def submit(self, ask: Ask) -> None:
        chat, domain, priority, cancelled = ask
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s)
        prompt = self.finder.find(chat, now=now, domain=domain, length_max=CONTEXT_LENGTH - 32)
        if len(prompt.tokens) >= CONTEXT_LENGTH - 32:
            self.ended["too long"] += 1
            return
        idle = priority is Priority.IDLE
        name = f"r{next(self.names)}"
        if idle or self.engine.room > 0:
            request = Request(name, prompt, GREEDY, 0 if idle else 16, priority=priority)
            self.engine.submit(request)
            self.open[name] = cancelled
            if chat.tools:
                self.calling[name] = prompt

    def step(self) -> None:
        for event in self.engine.step():
            name = event.request_id
            if isinstance(event, Generated) and self.open[name]:
                self.open[name] = False
                self.engine.cancel(name)
            elif isinstance(event, Finished | Failed) and name in self.open:  # else an audit
                del self.open[name]
                reason = event.reason if isinstance(event, Finished) else None
                assert reason, f"{name}: {event}"
                self.ended["cancelled" if reason is FinishReason.CANCELLED else "answered"] += 1
                if prompt := self.calling.pop(name, None):
                    self.cache.called(prompt, ["look"])

    def settle(self) -> None:
        """Until nothing is left to do; what waits for the disk waits in real time."""
        while self.engine.busy or self.engine.waiting:
            self.step()
            if not self.engine.busy:
                time.sleep(0.0005)


def conversations(random: Random) -> Iterator[tuple[float, Ask]]:
    """(pause before it in seconds, what is asked): one conversation, or loop, or one-shot."""
    kind = random.choices(("chat", "agent", "one-shot"), (4, 3, 3))[0]
    domain = random.choice(DOMAINS)
    system = Message("system", f"{kind} {random.randint(0, 5)} " + _words(Random(kind), 300))
    messages = [system, Message("user", _words(random, random.randint(10, 200)))]
    tools = ({"type": "function", "function": {"name": "look"}},) if kind == "agent" else ()
    priority = Priority.INTERACTIVE if kind == "chat" else Priority.AGENT
    for turn in range(1 if kind == "one-shot" else random.randint(2, 12)):
        pause_s = random.expovariate(1 / (60 if kind == "chat" else 3)) if turn else 0.0
        yield pause_s, (Conversation(tuple(messages), tools), domain, priority,
                        random.random() < 0.05)  # fmt: skip
        if kind == "agent":
            call = ToolCall(f"call_{turn}", "look", "{}")
            messages.append(Message("assistant", None, tool_calls=(call,)))
            result = _words(random, round(30 * 20 ** random.random()))
            messages.append(Message("tool", result, tool_call_id=call.id, name="look"))
        else:
            messages.append(Message("assistant", _words(random, 40)))
            if random.random() < 0.3:  # read ahead
                yield 0.0, (Conversation(tuple(messages)), domain, Priority.IDLE, False)
            messages.append(Message("user", _words(random, random.randint(5, 120))))


def soak(minutes: float, folder: Path, seed: int = 1) -> None:
    day, process = Day(folder, seed), psutil.Process()
    arrivals: list[tuple[float, int, Iterator[tuple[float, Ask]], Ask]] = []
    order, began = count(), time.monotonic()
    next_at, checked, checks = 0.0, began, 0
    samples: list[tuple[float, float]] = []

    def arrive(talk: Iterator[tuple[float, Ask]], after_s: float) -> None:
        if (following := next(talk, None)) is not None:
            heappush(arrivals, (after_s + following[0], next(order), talk, following[1]))

    while (spent := time.monotonic() - began) < 60 * minutes:
        day.now_s = max(
            day.now_s, min(COMPRESSED * spent, next_at, *(one[0] for one in arrivals[:1]))
        )
        while next_at <= day.now_s:
            arrive(conversations(day.random), day.now_s)
            next_at += day.random.expovariate(1 / 40)
        while arrivals and arrivals[0][0] <= day.now_s and day.engine.room > 0:
            at_s, _, talk, ask = heappop(arrivals)
            day.submit(ask)
            arrive(talk, at_s)
        if day.engine.busy:
            day.step()
        if time.monotonic() - checked > 1:
            checked, checks = time.monotonic(), checks + 1
            day.engine.check()
            day.cache.spill(all_of_it=True)
            gc.collect()
            samples.append((spent, process.memory_info().rss / MIB))
    day.settle()
    day.engine.check()
    assert not day.open, f"{len(day.open)} requests without an end"
    counters = day.disk.counters
    day.cache.close(60)
    report(day, samples, checks, counters.reads, counters.writes)


def report(
    day: Day, samples: list[tuple[float, float]], checks: int, reads: int, writes: int
) -> None:
    tally = day.cache.tally
    hits, misses = tally.of(HITS), tally.of(MISSES)
    reused, read = tally.of(REUSED), tally.of(READ)
    keep(
        "soak",
        "null device",
        hours=day.now_s / 3600,
        requests=day.ended.total(),
        cancelled=day.ended["cancelled"],
        **grown(samples),
        hit_rate=hits / max(1, hits + misses),
        token_hit_rate=reused / max(1, reused + read),
        evictions=int(tally.of(EVICTIONS)),
        disk_reads=reads,
        disk_writes=writes,
        checks=checks,
    )


def grown(samples: list[tuple[float, float]]) -> dict[str, Any]:
    """How memory went, of (seconds, MiB): after the warm-up, and all of it in 20 figures."""
    warm = samples[int(WARM_UP * len(samples)) :]
    times, sizes = (np.array(each) for each in zip(*warm, strict=True))
    return {
        "rss_start_mib": round(float(sizes[0]), 1),
        "rss_end_mib": round(float(sizes[-1]), 1),
        "rss_mib_per_minute": round(float(np.polyfit(times, sizes, 1)[0] * 60), 3),
        "rss_mib": [round(size, 1) for _, size in samples[:: max(1, len(samples) // 20)]],
    }


def _words(random: Random, number: int) -> str:
    return " ".join(random.choices(WORDS, k=number))


def _identity() -> Identity:
    return Identity(
        source="soak", graph=1, tokenizer="", template="", row_dtype="float32",
        layout=layout_hash(LAYOUT), device="null", runtime="", instructions=(),
    )  # fmt: skip


def _ignore(line: str) -> None:
    """Nobody reads along."""


def _fail(line: str) -> None:
    raise AssertionError(line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp())
    try:
        soak(arguments.minutes, home)
    finally:
        shutil.rmtree(home)
