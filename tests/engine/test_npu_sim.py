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
from flm.prefix.tally import AUDITS
from tests.engine.rig import VOCABULARY, Recorder, Rig, prompt_of, request_of, some_tokens
from tests.kernels.host import needs_compiler
from tests.models.drive import FIXTURES, Graph

CAPACITY = 128
HEAD, TAIL = some_tokens(1, 33), some_tokens(3, 7)
PROMPT = prompt_of(HEAD, TAIL)

pytestmark = needs_compiler


@pytest.fixture(params=["llama", "qwen35_k4v8"])  # rows alone, rows and state
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    yield from opened(request.param, tmp_path)


@pytest.fixture(params=["llama", "qwen35_k4v8"])
def audited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Each prompt that was reused is read again, and its logits compared."""
    yield from opened(request.param, tmp_path, audit_every=1)


def opened(name: str, folder: Path, *, audit_every: int = 0) -> Iterator[Rig]:
    source = GgufFile(FIXTURES / name / f"{name}.Q4_K_M.gguf")
    graph = Graph(source, folder)  # floats, so that what is decoded is as if it were read
    device = XrtDevice("npu-sim", capacity=CAPACITY)

    def make_runner(
        folder: Path, layout: MemoryLayout, *, lanes: int, capacity_max: int, **hooks: object
    ) -> tuple[Recorder, Lanes]:
        program = device.load(folder / "graph.onnx")
        room = Lanes(device, layout, count=lanes, capacity_max=CAPACITY, capacity_start=16)
        return Recorder(program, device, layout, room, vocabulary=VOCABULARY), room

    layout = graph.emitted.layout
    yield Rig(folder, layout=layout, lanes=1, make_runner=make_runner, audit_every=audit_every)
    device.close()


def kept(rig: Rig, tokens: int) -> int:
    """Of so many: a state is kept where the grid is."""
    return tokens - tokens % rig.cache.grid


def test_what_is_kept_is_found_again_and_a_killed_worker_ends_nothing(rig: Rig) -> None:
    rig.run(request_of("first", PROMPT, max_tokens=3))
    rig.run(request_of("again", PROMPT, max_tokens=2))
    assert rig.finished("again").usage.cached_tokens == kept(rig, len(PROMPT.tokens))
    assert rig.tokens("again") == rig.tokens("first")[:2]
    rig.run(request_of("other", prompt_of(HEAD, some_tokens(5, 6)), max_tokens=1))
    assert rig.finished("other").usage.cached_tokens == kept(rig, len(HEAD))
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


@pytest.mark.slow
def test_a_worker_killed_while_it_reads_a_prompt_changes_no_bit(audited: Rig) -> None:
    """Nor does what it goes on from, a prompt's start or what was read of it before."""
    rig, prompt = audited, prompt_of(HEAD, some_tokens(7, 50))
    device = rig.runner.device
    assert isinstance(device, XrtDevice)
    rig.run(request_of("first", PROMPT, max_tokens=1))
    rig.engine.submit(request_of("killed", prompt, max_tokens=3))
    rig.until(lambda: rig.steps[-1].spans[0].end > len(PROMPT.tokens))
    assert rig.steps[-1].spans[0].end < len(prompt.tokens)
    assert device.pid
    os.kill(device.pid, signal.SIGKILL)
    rig.run()
    # Where the grid is before its end, a state was kept as it got there.
    read = len(prompt.tokens) if rig.lanes.layout.state else len(HEAD)
    assert rig.finished("killed").usage.cached_tokens == kept(rig, read)
    assert len(rig.tokens("killed")) == 3
    assert rig.cache.tally.of(AUDITS, "equal") == 1
    assert rig.cache.tally.of(AUDITS, "different") == 0
