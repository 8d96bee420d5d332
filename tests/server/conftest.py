"""A fresh house for each test; one real server that serves whichever is open."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from flm.server.residence.residence import Residence
from tests.server.house import House, open_house, serving


@pytest.fixture(scope="session")
def front() -> Iterator[tuple[Residence, str]]:
    residence = Residence()
    with serving(residence) as url:
        yield residence, url


@pytest.fixture
def house(tmp_path: Path, front: tuple[Residence, str]) -> Iterator[House]:
    residence, url = front
    with open_house(tmp_path) as opened:
        residence.settle(opened.resident)
        opened.url = url
        yield opened


@pytest.fixture(autouse=True)
def what_a_client_leaves_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Is collected in the test that may leave it, not told in some other's."""
    yield
    if request.node.get_closest_marker("filterwarnings"):
        gc.collect()
