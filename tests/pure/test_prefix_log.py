"""The log is a user interface: FastFlowLM's wording, with its numbers for qwen3.5:4b."""

from collections.abc import Callable

import numpy as np
import pytest

from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.memory.snapshot import Snapshot
from flm.prefix.cache import PrefixCache
from tests.pure.toy import Log, serve, toy_cache

ROW, STATE, MIB = 32 * 2**10, int(49.1 * 2**20), 2**20


@pytest.fixture
def log() -> Log:
    return Log()


def big_cache(log: Log, **limits: int | None) -> PrefixCache:
    defaults: dict[str, int | None] = {"bytes_max": 4096 * MIB, "slots_max": None, "gain_min": 64}
    return PrefixCache(
        **{**defaults, **limits},  # type: ignore[arg-type]
        row_bytes=ROW,
        state_bytes=STATE,
        log=log.lines.append,
        warn=log.warnings.append,
    )


def save(start: int, end: int) -> Snapshot:
    rows = {"keys": np.zeros((1, end - start, ROW), np.uint8)}
    return Snapshot(start, end, rows, {"state": np.zeros(STATE, np.uint8)})


@pytest.mark.parametrize(
    ("slots_max", "limits"), [(8, "up to 8 snapshots in 4096 MiB"), (None, "up to 4096 MiB")]
)
def test_the_first_save_says_the_limits_and_what_a_prompt_costs(
    log: Log, slots_max: int | None, limits: str
) -> None:
    cache = big_cache(log, slots_max=slots_max)
    for first in (1, 2):
        boundary = Boundary(70, BoundaryKind.END)
        lease = cache.lease(Prompt((first,) * 70, (boundary,)))
        assert lease.keep(boundary, save)
        lease.close()
    assert log.having("up to") == [
        f"Prefix cache: {limits} (a saved row costs 32 KiB, a snapshot's state 49 MiB)"
    ]


def test_a_prompt_too_long_for_the_budget_says_what_it_needs(log: Log) -> None:
    cache = big_cache(log)
    tokens = tuple(range(140_000))
    boundary = Boundary(len(tokens), BoundaryKind.END)
    lease = cache.lease(Prompt(tokens, (boundary,)))
    assert not lease.wants(boundary)
    assert not lease.keep(boundary, save)
    assert log.warnings == [
        "Prefix cache: a 140000-token prompt needs 4424 MiB, more than --prefix-cache-mb "
        "(4096 MiB); it is not saved. Raise --prefix-cache-mb to reuse prompts this long."
    ]


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_request_says_where_it_starts(log: Log, hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid, log=log)
    tokens = list(range(100))
    serve(cache, tokens, head=60, end=100)
    assert log.lines[0] == "No saved prefix matches, prefilling 100 tokens"
    serve(cache, [*tokens[:60], 7, 8, 9], head=60, end=63)
    assert log.lines[-1] == "Prefix slot 1: resuming at 60 of 63 tokens"
    serve(cache, tokens, head=60, end=100)
    assert log.lines[-1] == "Prefix slot 2: resuming at 100 of 100 tokens"


def test_a_fresh_prompt_too_short_to_keep_says_so_once(log: Log) -> None:
    cache = toy_cache(gain_min=64, log=log)
    boundaries = (Boundary(10, BoundaryKind.HEAD), Boundary(40, BoundaryKind.END))
    lease = cache.lease(Prompt(tuple(range(40)), boundaries))
    wanted: list[Callable[..., bool]] = [lease.wants, lease.wants]
    assert [wants(boundary) for wants in wanted for boundary in boundaries] == [False] * 4
    assert log.having("not saved") == [
        "Prefix cache: not saved, only 40 tokens (needs 64, --prefix-min-gain)"
    ]
