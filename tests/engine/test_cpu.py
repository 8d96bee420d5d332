"""On a real graph, as on the null device: warm equals cold, however a prompt was cut and kept."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flm.core.request import SamplingParams
from flm.core.step import Span, Step
from flm.graph.weights.gguf import GgufFile
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout
from tests.engine.rig import VOCABULARY, Recorder, Rig, prompt_of, request_of, some_tokens
from tests.models.drive import FIXTURES, Graph

HEAD, TURN, TAIL = some_tokens(1, 33), some_tokens(2, 1), some_tokens(3, 20)
HOT = SamplingParams(temperature=1.0, seed=9)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    source = GgufFile(FIXTURES / "llama" / "llama.Q4_K_M.gguf")
    return Graph(source, tmp_path_factory.mktemp("llama"), int8_activations=True)


@pytest.fixture
def rig(graph: Graph, tmp_path: Path) -> Callable[..., Rig]:
    def cpu_runner(
        folder: Path, layout: MemoryLayout, *, lanes: int, capacity_max: int, during: object
    ) -> tuple[Recorder, Lanes]:
        room = Lanes(
            graph.device, layout, count=lanes, capacity_max=capacity_max, capacity_start=16
        )
        parts = graph.program, graph.device, layout, room
        return Recorder(*parts, vocabulary=VOCABULARY), room

    def make(**sizes: int) -> Rig:
        return Rig(tmp_path, layout=graph.emitted.layout, make_runner=cpu_runner, **sizes)

    return make


@pytest.mark.parametrize("chunk_len_max", [1, 2, 7, 64])
def test_warm_equals_cold_bit_for_bit(rig, chunk_len_max: int) -> None:
    cold = rig(cache_bytes=0, lanes=1, chunk_len_max=256)
    warm = rig(lanes=3, chunk_len_max=chunk_len_max)
    prompts = {
        "head": prompt_of(HEAD),
        "turn": prompt_of(HEAD, TURN),
        "tail": prompt_of(HEAD, TURN, TAIL),
        "other": prompt_of(HEAD, TAIL),
    }
    for name, prompt in prompts.items():
        cold.run(request_of(name, prompt, sampling=HOT, max_tokens=12))
    warm.run(
        *(request_of(name, prompt, sampling=HOT, max_tokens=12) for name, prompt in prompts.items())
    )
    again = {f"{name} again": prompt for name, prompt in prompts.items()}
    warm.run(
        *(request_of(name, prompt, sampling=HOT, max_tokens=12) for name, prompt in again.items())
    )
    for name, prompt in prompts.items():
        assert warm.tokens(name) == warm.tokens(f"{name} again") == cold.tokens(name)
        assert warm.finished(f"{name} again").usage.cached_tokens == len(prompt.tokens)


def test_restored_memory_is_the_same_to_the_bit(rig) -> None:
    one = rig(lanes=2)
    runner, lanes = one.runner, one.lanes
    runner.run(Step((Span(0, 0, HEAD),), prefill=True))
    snapshots = [runner.save(0, 0, 12), runner.save(0, 12, 33)]
    expected = runner.run(Step((Span(0, 33, TAIL),), prefill=True))[0].copy()
    runner.restore(1, HEAD, snapshots)
    found = runner.run(Step((Span(1, 33, TAIL),), prefill=True))[1]
    np.testing.assert_array_equal(found, expected)
    for buffer in lanes.buffers(0, 2).values():
        rows = buffer.array()[:, :, :53]
        np.testing.assert_array_equal(rows[0], rows[1])
