"""What Prometheus reads agrees with what clients were told, and its labels are few."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flm.prefix.tally import FAMILIES
from tests.server.house import House, open_house, serving
from tests.server.test_prefix_cache import Client, body

LABELS = {"tier", "kind", "reason", "outcome", "class", "le"}


@pytest.fixture
def url(house: House) -> Iterator[str]:
    with serving(house.residence) as url:
        yield url


def scrape(url: str) -> dict[str, float]:
    """Sums over all labels, by name."""
    reply = httpx.get(f"{url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            assert sample.labels.keys() <= LABELS
            if "le" not in sample.labels:
                sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def test_counters_agree_with_usage(house: House, url: str) -> None:
    client = Client(url)
    usages = []
    for user in ("one", "two", "one", "three"):
        reply: dict[str, Any] = client.post("/v1/chat/completions", json=body(user=user)).json()
        usages.append(reply["usage"])
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    seen = scrape(url)
    assert seen["flm_prefix_cache_reused_tokens_total"] == cached > 0
    assert seen["flm_prefix_cache_read_tokens_total"] == prompts - cached
    assert seen["flm_prefix_cache_hits_total"] == 3
    assert seen["flm_prefix_cache_misses_total"] == 1
    assert seen["flm_requests_total"] == seen["flm_first_token_seconds_count"] == 4
    totals = client.show()["totals"]
    assert seen["flm_prefix_cache_bytes"] == totals["bytes_kept"] > 0
    assert seen["flm_prefix_cache_bytes_max"] == totals["bytes_max"]
    assert seen["flm_prefix_cache_slots"] == totals["slots"] > 0
    assert seen["flm_requests_running"] == seen["flm_prefix_cache_leases"] == 0


def test_requests_are_counted_by_the_class_of_their_status(house: House, url: str) -> None:
    client = Client(url)
    client.chat()
    client.post("/v1/chat/completions", json={"model": "other", **body()} | {"model": "other"})
    client.post("/v1/completions", json={"model": "tiny:1m"})
    text = httpx.get(f"{url}/metrics").text
    assert 'flm_requests_total{class="interactive",outcome="2xx"} 1.0' in text
    assert 'flm_requests_total{class="",outcome="4xx"} 2.0' in text


def test_all_that_is_tallied_is_told(house: House, url: str) -> None:
    text = httpx.get(f"{url}/metrics").text
    families = {family.name for family in text_string_to_metric_families(text)}
    for family in FAMILIES:
        unit = f"_{family.unit}" if family.unit else ""
        assert f"flm_prefix_cache_{family.name}{unit}" in families


def test_while_no_model_is_there_it_is_503(tmp_path: Path) -> None:
    from flm.server.residence.residence import Residence

    with serving(Residence()) as url:
        assert httpx.get(f"{url}/metrics").status_code == 503


def test_a_scrape_follows_the_model(tmp_path: Path) -> None:
    """A house at one address may change."""
    from flm.server.residence.residence import Residence

    residence = Residence()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serving(residence) as url:
        with open_house(tmp_path / "a") as first:
            residence.settle(first.resident)
            Client(url).chat()
            assert scrape(url)["flm_prefix_cache_misses_total"] == 1
        with open_house(tmp_path / "b") as second:
            residence.settle(second.resident)
            assert scrape(url)["flm_prefix_cache_misses_total"] == 0
