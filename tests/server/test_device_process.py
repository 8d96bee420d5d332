"""A server whose device is a process: it answers meanwhile, and outlives it."""

import os
import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from flm.devices.xrt.device import XrtDevice
from flm.server.residence.residence import Residence
from tests.devices.test_contract import STAND_IN
from tests.devices.test_xrt_process import until
from tests.server.house import House, open_house
from tests.server.test_streaming import chat, deltas, events, stream

HEALTH_S_MAX = 0.05


@pytest.fixture
def house(tmp_path: Path, front: tuple[Residence, str]) -> Iterator[House]:
    residence, url = front
    device = XrtDevice("npu-sim", command=STAND_IN)
    with open_house(tmp_path, device=device) as opened:
        residence.settle(opened.resident)
        opened.url = url
        yield opened


def test_health_answers_while_the_device_computes(house: House, tmp_path: Path) -> None:
    """The worker holds Python's lock, as pyxrt does while it waits: its own, not the server's."""
    trouble = tmp_path / "trouble"
    trouble.write_text("work")
    with ThreadPoolExecutor(1) as client, httpx.Client(base_url=house.url) as asking:
        assert asking.get("/health").status_code == 200
        reply = client.submit(chat, house, max_tokens=2)
        until(lambda: not trouble.exists())
        took = []
        for _ in range(9):
            started = time.monotonic()
            assert asking.get("/health").json()["status"] == "ok"
            took.append(time.monotonic() - started)
        assert not reply.done(), "it still computes"
        assert statistics.median(took) < HEALTH_S_MAX, took
        assert reply.result(20)


def test_a_stream_goes_on_when_the_worker_is_killed(house: House) -> None:
    calm = "".join(deltas(chat(house, max_tokens=200)))
    device = house.device
    assert isinstance(device, XrtDevice)
    first = device.pid
    assert first
    with stream(house.url, max_tokens=200) as response:
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(8)]
        os.kill(first, signal.SIGKILL)
        rest = list(lines)
    assert "".join(deltas(events([*seen, *rest]))) == calm
    assert device.pid != first
    assert any("signal 9" in line and "go on from" in line for line in house.warnings)
    counted = httpx.get(f"{house.url}/metrics").text
    for name in ("flm_device_lost", "flm_device_rebuilt", "flm_requests_resumed"):
        assert f"{name}_total 1.0\n" in counted
