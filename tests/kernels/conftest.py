"""fakexrt pretends to run on one machine; a test that asks gets a fresh one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_kernels import fakexrt
from tests.kernels.npu import Npu, loopback


@pytest.fixture
def machine() -> Iterator[fakexrt.Machine]:
    before = fakexrt.current()
    yield fakexrt.use(fakexrt.Machine())
    fakexrt.use(before)


@pytest.fixture
def npu(machine: fakexrt.Machine, tmp_path: Path) -> Npu:
    return Npu(fakexrt, loopback(tmp_path))
