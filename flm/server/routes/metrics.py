"""GET /metrics: what the prefix cache, the engine and the server did, as Prometheus reads it.

Everything is read when it is asked for; nothing is done for it while a model runs. Labels are of a
few fixed words, never a client's.
"""

from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from flm.core.event import Usage
from flm.core.request import Priority
from flm.engine.counting import Losses
from flm.engine.thread import EngineThread
from flm.prefix.cache import PrefixCache
from flm.prefix.disk.tier import DiskTier
from flm.prefix.room import left_bytes
from flm.prefix.tally import FAMILIES
from flm.runner.eyes import Eyes
from flm.server.residence.names import CLASSES
from flm.server.residence.residence import Residence

PREFIX = "flm_prefix_cache"
FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class Served:
    """The requests that asked for work, counted when they have ended."""

    def __init__(self) -> None:
        self._requests = Counter(
            "flm_requests", "requests that asked for work", ["outcome", "class"], registry=None
        )
        self._first = Histogram(
            "flm_first_token_seconds",
            "from a request's arrival to its first token",
            ["class"],
            buckets=FIRST_TOKEN_S,
            registry=None,
        )
        self._whole = Histogram(
            "flm_request_seconds",
            "from a request's arrival to its last token",
            ["class"],
            buckets=WHOLE_S,
            registry=None,
        )

    def note(
        self, status: int, usages: Sequence[Usage] = (), priority: Priority | None = None
    ) -> None:
        """`usages` are those of its answers that ended; `priority` None: it was not understood."""
        kind = priority.value if priority else ""
        self._requests.labels(f"{status // 100}xx", kind).inc()
        for usage in usages:
            first_s = usage.queue_s + usage.prefill_s
            self._first.labels(kind).observe(first_s)
            self._whole.labels(kind).observe(first_s + usage.decode_s)

    def collect(self) -> Iterator[Metric]:
        for each in (self._requests, self._first, self._whole):
            yield from each.collect()


def routes(residence: Residence, served: Served) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """For Prometheus."""
        resident = residence.here
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Moving(residence, served))
        if resident:
            registry.register(_Reading(resident.thread))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


class _Moving(Collector):
    """What there is to tell whichever model is loaded, or none."""

    def __init__(self, residence: Residence, served: Served) -> None:
        self._residence = residence
        self._served = served

    def collect(self) -> Iterator[Metric]:
        waiting = self._residence.waiting
        yield GaugeMetricFamily("flm_requests_waiting_for_model", "for another model", waiting)
        yield from self._served.collect()


class _Reading(Collector):
    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._cache = thread.cache

    def collect(self) -> Iterator[Metric]:
        yield from _tallied(self._cache)
        yield from _held(self._cache)
        if self._cache.disk:
            yield from _disk(self._cache.disk)
        yield from _standing(self._thread)
        yield from _lost(self._thread.losses)
        if self._thread.eyes:
            yield from _seen(self._thread.eyes)


def _standing(thread: EngineThread) -> Iterator[Metric]:
    counts, places = thread.standing, {"waiting": "without a lane", "running": "in a lane"}
    for place, what in {**places, "parked": "whose lane a person's request has"}.items():
        metric = GaugeMetricFamily(f"flm_requests_{place}", what, labels=("class",))
        for each in CLASSES.values():
            metric.add_metric((each.value,), counts[place, each])
        yield metric
    parked = thread.parked
    held = GaugeMetricFamily("flm_parked_bytes", "memory of parked requests", labels=("tier",))
    most = GaugeMetricFamily("flm_parked_bytes_max", "may be parked", labels=("tier",))
    for tier, size, size_max in (
        ("host", parked.host_bytes, parked.host_max),
        ("disk", parked.disk_bytes, parked.disk_max),
    ):
        held.add_metric((tier,), size)
        most.add_metric((tier,), size_max)
    yield from (held, most)


def _lost(losses: Losses) -> Iterator[Metric]:
    counted = (
        ("flm_device_lost", "devices that ended with all they held", losses.devices),
        ("flm_device_rebuilt", "times that a pass ran again after that", losses.rebuilt),
        ("flm_requests_resumed", "that ran, and went on from what was kept", losses.resumed),
    )
    for name, what, count in counted:
        yield CounterMetricFamily(name, what, count)


def _seen(eyes: Eyes) -> Iterator[Metric]:
    counted = (
        ("encoded", "pictures that the tower has seen", eyes.encoded),
        ("encoding_seconds", "seconds that took", eyes.encoding_s),
    )
    for name, what, count in counted:
        yield CounterMetricFamily(f"flm_pictures_{name}", what, count)
    held = "what the tower made of pictures seen lately"
    yield GaugeMetricFamily("flm_pictures_bytes", held, eyes.bytes_kept)


def _tallied(cache: PrefixCache) -> Iterator[Metric]:
    counts = dict(cache.tally.counts)  # at once, for the engine's thread goes on counting
    for family in FAMILIES:
        name = "_".join(word for word in (PREFIX, family.name, family.unit) if word)
        metric = CounterMetricFamily(name, family.help, labels=family.labels)
        own = {labels: count for (of, labels), count in counts.items() if of is family}
        if not family.labels:
            own.setdefault((), 0)
        for labels, count in own.items():
            metric.add_metric(labels, count)
        yield metric


def _held(cache: PrefixCache) -> Iterator[Metric]:
    tiers: dict[str, tuple[int, int, int]] = {
        "host": (cache.bytes_kept, cache.bytes_max, cache.slot_count)
    }
    if cache.disk:
        store = cache.disk.store
        tiers["disk"] = store.bytes_kept, store.bytes_max, store.snapshot_count
    gauges = (("bytes", "kept"), ("bytes_max", "may be kept"), ("slots", "snapshots kept"))
    for index, (name, what) in enumerate(gauges):
        metric = GaugeMetricFamily(f"{PREFIX}_{name}", what, labels=("tier",))
        for tier, values in tiers.items():
            metric.add_metric((tier,), values[index])
        yield metric
    yield GaugeMetricFamily(f"{PREFIX}_leases", "kept prefixes in use", len(cache.leases))
    ghosts = cache.ghosts.bytes_held
    yield GaugeMetricFamily(f"{PREFIX}_ghosts_bytes", "known of prompts seen lately", ghosts)
    left = "within bytes_max, of models that are not loaded"
    yield GaugeMetricFamily(f"{PREFIX}_left_bytes", left, left_bytes(cache))


def _disk(disk: DiskTier) -> Iterator[Metric]:
    counters = disk.counters
    counted = (
        ("reads", "snapshots read", counters.reads),
        ("read_bytes", "bytes read", counters.read_bytes),
        ("read_seconds", "seconds spent reading", counters.read_s),
        ("broken", "reads that failed", counters.broken),
        ("writes", "snapshots written", counters.writes),
        ("write_bytes", "bytes written", counters.write_bytes),
        ("write_seconds", "seconds spent writing", counters.write_s),
    )
    for name, what, count in counted:
        yield CounterMetricFamily(f"{PREFIX}_disk_{name}", what, count)
    pending = disk.pending_bytes
    yield GaugeMetricFamily(f"{PREFIX}_disk_pending_bytes", "that wait to be written", pending)
