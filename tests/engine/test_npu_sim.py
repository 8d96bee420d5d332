"""On a simulated NPU, in its process: what is kept is found, and a killed worker ends nothing."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flm.core.event import FinishReason
from flm.devices.xrt.device import XrtDevice
from flm.graph.weights.gguf import GgufFile
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout
from tests.engine.rig import VOCABULARY, Recorder, Rig, prompt_of, request_of, some_tokens
from tests.kernels.host import needs_compiler
from tests.models.drive import FIXTURES, Graph

CAPACITY = 64
HEAD, TAIL = some_tokens(1, 33), some_tokens(3, 7)
PROMPT = prompt_of(HEAD, TAIL)

pytestmark = needs_compiler


@pytest.fixture(params=["llama", "qwen35_k4v8"])  # rows alone, rows and state
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    source = GgufFile(FIXTURES / request.param / f"{request.param}.Q4_K_M.gguf")
    graph = Graph(source, tmp_path)  # floats, so that what is decoded is as if it were read
    device = XrtDevice("npu-sim", capacity=CAPACITY)

    def make_runner(
        folder: Path, layout: MemoryLayout, *, lanes: int, capacity_max: int, **hooks: object
    ) -> tuple[Recorder, Lanes]:
        program = device.load(folder / "graph.onnx")
        room = Lanes(device, layout, count=lanes, capacity_max=CAPACITY, capacity_start=16)
        return Recorder(program, device, layout, room, vocabulary=VOCABULARY), room

    yield Rig(tmp_path, layout=graph.emitted.layout, lanes=1, make_runner=make_runner)
    device.close()


def test_what_is_kept_is_found_again_and_a_killed_worker_ends_nothing(rig: Rig) -> None:
    rig.run(request_of("first", PROMPT, max_tokens=3))
    rig.run(request_of("again", PROMPT, max_tokens=2))
    assert rig.finished("again").usage.cached_tokens == len(PROMPT.tokens)
    assert rig.tokens("again") == rig.tokens("first")[:2]
    rig.run(request_of("other", prompt_of(HEAD, some_tokens(5, 6)), max_tokens=1))
    assert rig.finished("other").usage.cached_tokens == len(HEAD)
    device = rig.runner.device
    assert isinstance(device, XrtDevice)
    first = device.pid
    assert first
    rig.engine.submit(request_of("killed", PROMPT, max_tokens=3))
    rig.until(lambda: len(rig.tokens("killed")) == 2)
    os.kill(first, signal.SIGKILL)
    rig.run()
    assert device.pid != first
    assert rig.finished("killed").reason is FinishReason.LENGTH
    assert rig.tokens("killed") == rig.tokens("first")
