"""Five thousand requests, one after the other: the server that has answered them holds no more than
the one that had answered a few hundred, with a disk for its prefix cache and without.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil
import pytest

from bench.soak import WORDS
from flm.core.sizes import MIB

ROOT = Path(__file__).parents[2]
REQUESTS, EVERY = 5000, 50  # memory is looked at after so many
WARM = 0.4  # of them, until all that is bounded is full
GROWTH_MIB_MAX = 3.0

PROGRAM = """
import json, sys
from pathlib import Path
from flm import console
from flm.prefix.disk.tier import DiskTier
from flm.prefix.disk.store import DiskStore
from tests.pure.disk import identity
from tests.server.house import SETTINGS, STATEFUL, open_house, serving

console.configure(level="error")
folder, disk_bytes = Path(sys.argv[1]), int(sys.argv[2])
disk = disk_bytes and DiskTier(
    DiskStore(
        folder / "disk", identity(STATEFUL), STATEFUL, bytes_max=disk_bytes, free_min_bytes=0,
        warn=print,
    )
)
with open_house(
    folder, layout=STATEFUL, context_length=1024, cache_bytes=2**19, chars_max=2**16,
    disk=disk or None,
) as house:
    def forget():
        for noted in (house.requests, house.log, house.warnings):
            noted.clear()
    house.during_passes(forget)
    with serving(house.residence) as url:
        print(url, flush=True)
        sys.stdin.read()
    engine = house.resident.thread.ask(lambda engine: engine).result(10)
    engine.check()
    standing = engine.standing.total() + len(engine.cache.leases)
    writes = disk.counters.writes if disk else 0
    print(json.dumps({"left_behind": standing, "disk_writes": writes}), flush=True)
"""


@contextmanager
def server(
    folder: Path, disk_bytes: int
) -> Iterator[tuple[httpx.Client, psutil.Process, Callable[[], str]]]:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(disk_bytes)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        stdin, stdout = process.stdin, process.stdout

        def end() -> str:
            """What it has seen."""
            stdin.close()
            return stdout.read()

        try:
            url = stdout.readline().strip()
            with httpx.Client(base_url=url, timeout=30) as client:
                yield client, psutil.Process(process.pid), end
        finally:
            process.kill()


def body(random: Random, number: int) -> tuple[str, dict[str, Any]]:
    """Of every API, whole and streamed, some held to a schema, some refused."""

    def words(count: int) -> str:
        return " ".join(random.choices(WORDS, k=count))

    messages = [
        {"role": "system", "content": f"{number % 5} " + words(60)},
        {"role": "user", "content": words(random.randint(3, 120))},
    ]
    asked: dict[str, Any] = {"model": "tiny:1m", "max_tokens": 4, "stream": number % 2 == 0}
    match number % 10:
        case 1:
            return "/v1/messages", asked | {"messages": messages[1:], "system": words(50)}
        case 2:
            return "/v1/responses", asked | {"input": words(40), "max_output_tokens": 16}
        case 3:
            return "/api/chat", {"model": "tiny:1m", "messages": messages, "stream": False}
        case 4:
            schema = {"type": "object", "properties": {words(1): {"type": "string"}}}
            held = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            return "/v1/chat/completions", asked | {"messages": messages, "response_format": held}
        case 5:
            return "/v1/chat/completions", asked | {"messages": messages, "temperature": 9}
    return "/v1/chat/completions", asked | {"messages": messages}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("disk_bytes", [4 * MIB, 0], ids=["disk", "no disk"])
def test_memory_is_flat_over_five_thousand_requests(tmp_path: Path, disk_bytes: int) -> None:
    random, sizes = Random(5), list[float]()
    with server(tmp_path, disk_bytes) as (client, process, end):
        for number in range(REQUESTS):
            path, asked = body(random, number)
            answer = client.post(path, json=asked)
            refused = asked.get("temperature") == 9
            assert answer.status_code == (400 if refused else 200), answer.text
            if number % EVERY == 0:
                sizes.append(process.memory_info().rss / MIB)
        seen = json.loads(end())
    assert seen["left_behind"] == 0
    assert (seen["disk_writes"] > 0) == (disk_bytes > 0)
    warm = sizes[int(WARM * len(sizes)) :]
    third = len(warm) // 3
    before, after = (statistics.median(each) for each in (warm[:third], warm[-third:]))
    assert after - before < GROWTH_MIB_MAX, [round(size, 1) for size in sizes]
