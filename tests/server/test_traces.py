"""Recorded agents, in the order and the company that they came in: everyone is answered, as by a
server that reuses nothing, and hardly a token is read twice.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest

from flm.core.prompt import Prompt
from flm.prefix.tally import WAITS
from tests.pure.explained import SOURCES
from tests.server.reported import HELD, LAYOUTS, SETTINGS, Caller, Read, two_servers
from tests.server.test_reports import alike

TRACES = Path(__file__).resolve().parents[2] / "bench" / "traces" / "hermes.jsonl.gz"
TOGETHER_S = 0.1  # apart at most: those who arrive so are there at once
CONTEXT_LENGTH = 32_768


def arrivals() -> Iterator[list[dict[str, Any]]]:
    """Bodies that came together, scenario after scenario."""
    with gzip.open(TRACES, "rt") as lines:
        recorded = [json.loads(line) for line in lines]
    for _, scenario in groupby(recorded, key=lambda each: each["scenario"]):
        group: list[dict[str, Any]] = []
        for each in scenario:
            if group and each["at_s"] - group[-1]["at_s"] > TOGETHER_S:
                yield [shortened(one["body"]) for one in group]
                group = []
            group.append(each)
        yield [shortened(one["body"]) for one in group]


def shortened(body: dict[str, Any]) -> dict[str, Any]:
    """As it was sent, but whole and for few tokens; and with fewer tools, to be quick."""
    tools = [tool for tool in body["tools"] if len(json.dumps(tool)) < 1500]
    return {"messages": body["messages"], "tools": tools}


def replay(caller: Caller) -> list[Read]:
    return [read for bodies in arrivals() for read in caller.together(*bodies)]


def unavoidable(groups: list[list[Prompt]], *, state: bool) -> int:
    """Tokens that a cache of any size must read: those no earlier prompt began with. With state,
    those beyond the places that an earlier one was read to: its boundaries, and where it parts
    from others that were there by then.
    """
    total, seen = 0, list[tuple[int, ...]]()
    kept: set[tuple[int, ...]] = set()
    for group in groups:
        there = [prompt.tokens for prompt in group]
        for prompt in group:
            tokens = prompt.tokens
            best = max((alike(tokens, other) for other in seen), default=0)
            if state:
                whole = (len(each) for each in kept if tokens[: len(each)] == each)
                best = max(whole, default=0)
            total += len(tokens) - best
            places = [boundary.offset for boundary in prompt.boundaries]
            places += [alike(tokens, other) for other in (*seen, *there)]
            kept |= {tokens[:place] for place in places if place > best}
            seen.append(tokens)
    return total


def test_the_recorded_arrivals_are_what_they_are_said_to_be() -> None:
    sizes = [len(bodies) for bodies in arrivals()]
    assert sum(sizes) == 23
    assert sizes.count(4) == 4, "three agents and their parent; users of a gateway, three times"


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_recorded_agents_are_answered_and_hardly_a_token_is_read_twice(
    tmp_path: Path, kind: str, lanes: int
) -> None:
    settings = replace(SETTINGS, lanes=lanes)
    room: dict[str, Any] = {
        "template": SOURCES["tools_first"],
        "context_length": CONTEXT_LENGTH,
        "cache_bytes": 2**26,
        "chunk_len_max": 512,
    }
    with two_servers(tmp_path, kind, settings=settings, **room) as servers:
        warm = replay(servers.warm)
        servers.warm.check()
        asked = servers.house.requests
        prompts = [request.prompt for request in asked if request.id != HELD.id]
        held = sum(len(request.prompt.tokens) for request in asked if request.id == HELD.id)
        cold = {}
        for bodies in arrivals():
            for body in bodies:
                key = json.dumps(body)
                cold[key] = cold[key] if key in cold else servers.cold.chat(**body)
        expected = [cold[json.dumps(body)] for bodies in arrivals() for body in bodies]
        assert [read.text for read in warm] == [read.text for read in expected]
        remaining = iter(prompts)
        groups = [list(islice(remaining, len(bodies))) for bodies in arrivals()]
        state = kind == "state"
        needed, read = unavoidable(groups, state=state), servers.house.runner.tokens_read - held
        assert needed <= read <= needed + SETTINGS.prefix_min_gain * len(prompts)
        assert read < (0.2 if state else 0.15) * sum(len(prompt.tokens) for prompt in prompts)
        tally = servers.house.resident.thread.ask(lambda engine: engine.cache.tally).result()
        assert tally.of(WAITS) >= lanes - 1
