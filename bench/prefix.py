"""Which snapshots to give up: policies over the real prefix cache, on recorded and made-up traffic.

    python -m bench.prefix [--quick] [--rows-only] [--only NAME ...] [--policies NAME ...]

The model is Qwen3.5 4B's memory in miniature: a byte stands for 32 KiB, so a row is one byte, a
state 49 MiB and four GiB are 128 KiB. Requests come one at a time, at the times they came. Token
hit rate is the share of prompt tokens that were not read; seconds are those that reading them would
have taken. `unbounded` gives nothing up. One seed says little: where room lacks, two policies may
differ by five points either way. So every figure is a mean, and what a policy has over the default
comes with its standard error, over the seeds.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bench.policies import Gdsf, Marconi, lru
from bench.rows import keep
from bench.traffic import TRAFFIC, Arrival
from flm.core.sizes import MIB
from flm.memory.snapshot import Snapshot
from flm.prefix.cache import PrefixCache
from flm.prefix.eviction import Policy, density, flm, pinning
from flm.prefix.lease import Lease
from flm.prefix.tally import EVICTIONS

GIB, SCALE = 2**30, 32 * 2**10
ROW, STATE, LOGITS = 1, 49 * MIB // SCALE, 248_320 * 4 // SCALE
SIZES, SIZE_UNBOUNDED = (1, 2, 4, 8), 2**16  # GiB
SEEDS, SEEDS_QUICK = range(4, 12), (4,)  # 1 to 3 were for choosing density's pause
DEFAULT = "density"
ALPHAS = (0.1, 0.3, 1.0, 3.0)

POLICIES: dict[str, tuple[Callable[[], Policy], ...]] = {  # the best counts, where there are more
    "flm": (lambda: flm,),
    "lru": (lambda: lru,),
    "gdsf": (Gdsf,),
    "marconi": tuple(partial(Marconi, alpha) for alpha in ALPHAS),
    "density": (lambda: density,),
    "pinning": (lambda: pinning,),
}


@dataclass(frozen=True, slots=True)
class Reuse:
    hit_rate: float
    saved_s: float


def read_s(start: int, end: int) -> float:
    """1,000 tokens a second at first, half of it at 16K: what an NPU's users report."""
    return (end - start) / 1000 * (1 + (start + end) / 2 / 16_384)


def save(start: int, end: int) -> Snapshot:
    rows = {"rows": np.zeros((1, end - start, ROW), np.uint8)}
    return Snapshot(start, end, rows, {"state": np.zeros(STATE, np.uint8)})


def save_rows(start: int, end: int) -> Snapshot:
    """Of a model without state."""
    return replace(save(start, end), state={})


def quiet(line: str) -> None:
    """Nobody reads along."""


class Replay:
    """One server, asked by one request after another."""

    def __init__(self, policy: Policy, bytes_max: int, *, rows_only: bool = False) -> None:
        self.now_s = 0.0
        self.save = save_rows if rows_only else save
        self.cache = PrefixCache(
            bytes_max=bytes_max,
            slots_max=None,
            gain_min=64,
            row_bytes=ROW,
            state_bytes=0 if rows_only else STATE,
            log=quiet,
            warn=quiet,
            policy=policy,
            clock=lambda: self.now_s,
        )
        self.logits = np.zeros(LOGITS, np.uint8)

    def run(self, traffic: Iterable[Arrival]) -> Reuse:
        reused = total = 0
        saved_s = 0.0
        for arrival in traffic:
            self.now_s = arrival.at_s
            lease = self.cache.lease(arrival.prompt, agent=arrival.agent)
            reused += lease.offset
            total += len(arrival.prompt.tokens)
            saved_s += read_s(0, lease.offset)
            self.serve(arrival, lease)
        return Reuse(reused / total, saved_s)

    @property
    def gave_up(self) -> bool:
        return self.cache.tally.of(EVICTIONS) > 0

    def serve(self, arrival: Arrival, lease: Lease) -> None:
        for boundary in lease.boundaries:
            if lease.wants(boundary):
                is_end = boundary.offset == len(arrival.prompt.tokens)
                lease.keep(boundary, self.save, self.logits if is_end else None)
        lease.close()
        if arrival.calls:
            self.cache.called(arrival.prompt, arrival.calls)


def compare(
    traffic: str, seeds: Iterable[int], policies: Sequence[str], *, rows_only: bool
) -> dict[str, list[list[Reuse]]]:
    """By policy, for each size, one for each seed."""
    runs: dict[str, list[list[Reuse]]] = {
        name: [[] for _ in SIZES] for name in ("unbounded", *policies)
    }
    for seed in seeds:
        arrivals = TRAFFIC[traffic](seed)

        def run(policy: Policy, gib: int, arrivals: list[Arrival] = arrivals) -> tuple[Reuse, bool]:
            replay = Replay(policy, gib * GIB // SCALE, rows_only=rows_only)
            return replay.run(arrivals), replay.gave_up

        unbounded, _ = run(flm, SIZE_UNBOUNDED)
        for place, gib in enumerate(SIZES):
            runs["unbounded"][place].append(unbounded)
            first, gave_up = run(flm, gib)
            for name in policies:
                # Whoever is never asked for a victim is as good as any other.
                tried = [run(make(), gib)[0] for make in POLICIES[name]] if gave_up else [first]
                runs[name][place].append(max(tried, key=lambda reuse: reuse.hit_rate))
    return runs


def lead(ours: Iterable[Reuse], theirs: Iterable[Reuse]) -> tuple[float, float]:
    """Points of token hit rate that ours is better by, and the standard error of that."""
    pairs = zip(ours, theirs, strict=True)
    points = [100 * (our.hit_rate - their.hit_rate) for our, their in pairs]
    error = statistics.stdev(points) / len(points) ** 0.5 if len(points) > 1 else 0.0
    return statistics.mean(points), error


def means(runs: list[list[Reuse]], figure: str, digits: int) -> list[float]:
    return [round(statistics.mean(getattr(each, figure) for each in size), digits) for size in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one seed, half of the traffic; keeps no rows"
    )
    parser.add_argument("--rows-only", action="store_true", help="a model without state")
    parser.add_argument("--only", nargs="+", choices=TRAFFIC, help="this traffic")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, help="these, and the default")
    given = parser.parse_args()
    policies = [name for name in POLICIES if name in (*(given.policies or POLICIES), DEFAULT)]
    quick, model = given.quick, ", rows only" if given.rows_only else ""
    leads: dict[str, list[tuple[float, float]]] = {name: [] for name in policies}
    print(f"{'token hit rate at':32}", *(f"{size:3} GiB" for size in SIZES))
    for traffic in given.only or list(TRAFFIC)[:: 2 if quick else 1]:
        seeds = SEEDS_QUICK if quick else SEEDS
        compared = compare(traffic, seeds, policies, rows_only=given.rows_only)
        print(traffic)
        rates = {name: means(runs, "hit_rate", 4) for name, runs in compared.items()}
        for name, each in rates.items():
            print(f"    {name:28}", *(f"{rate:7.3f}" for rate in each), flush=True)
        for name in policies:
            leads[name] += map(lead, compared[name], compared[DEFAULT])
        if not quick:
            saved = {name: means(runs, "saved_s", 1) for name, runs in compared.items()}
            count, sizes = len(seeds), list(SIZES)
            keep("prefix", f"{traffic}{model}: token hit rate", seeds=count, gib=sizes, **rates)
            keep("prefix", f"{traffic}{model}: seconds saved", seeds=count, gib=sizes, **saved)
    print(f"against {DEFAULT}, in points:   worst    mean    best (and its error)")
    for name, points in leads.items():
        best, error = max(points)
        worst, mean = min(points)[0], statistics.mean(each for each, _ in points)
        print(f"    {name:22} {worst:7.1f} {mean:7.1f} {best:7.1f} ± {error:.1f}")


if __name__ == "__main__":
    main()
