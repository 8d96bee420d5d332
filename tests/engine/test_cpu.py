"""On a real graph, as on the null device: warm equals cold, however a prompt was cut and kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Priority, Request, SamplingParams
from flm.core.step import Span, Step
from flm.core.tensor import MemoryKind
from flm.devices.device import Array
from flm.devices.selftest import lone_row_alike
from flm.engine.sampler import Sample
from flm.graph.weights.gguf import GgufFile
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout
from flm.prefix.tally import AHEAD, PARKED
from tests.engine.rig import VOCABULARY, Recorder, Rig, prompt_of, request_of, some_tokens
from tests.models.drive import FIXTURES, Graph

HEAD, TURN, TAIL = some_tokens(1, 33), some_tokens(2, 1), some_tokens(3, 20)
PROMPTS = {
    "head": prompt_of(HEAD),
    "turn": prompt_of(HEAD, TURN),
    "tail": prompt_of(HEAD, TURN, TAIL),
    "other": prompt_of(HEAD, TAIL),
}
HOT = SamplingParams(temperature=1.0, seed=9)


@pytest.fixture(scope="module", params=["llama", "qwen35_k4v8"])  # rows alone, rows and state
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    source = GgufFile(FIXTURES / request.param / f"{request.param}.Q4_K_M.gguf")
    return Graph(source, tmp_path_factory.mktemp(request.param), int8_activations=True)


@pytest.fixture
def rig(graph: Graph, tmp_path: Path) -> Callable[..., Rig]:
    def cpu_runner(
        folder: Path, layout: MemoryLayout, *, lanes: int, capacity_max: int, **hooks: object
    ) -> tuple[Recorder, Lanes]:
        room = Lanes(
            graph.device, layout, count=lanes, capacity_max=capacity_max, capacity_start=16
        )
        parts = graph.program, graph.device, layout, room
        return Recorder(*parts, vocabulary=VOCABULARY), room

    def make(**sizes: Any) -> Rig:
        return Rig(tmp_path, layout=graph.emitted.layout, make_runner=cpu_runner, **sizes)

    return make


def ask(rig: Rig, prompts: dict[str, Prompt], *, side_by_side: bool) -> None:
    requests = [request_of(n, p, sampling=HOT, max_tokens=12) for n, p in prompts.items()]
    for group in [requests] if side_by_side else [[request] for request in requests]:
        rig.run(*group)


def again(prompts: dict[str, Prompt]) -> dict[str, Prompt]:
    return {f"{name} again": prompt for name, prompt in prompts.items()}


chunk_lens = pytest.mark.parametrize("chunk_len_max", [1, 2, 7, 64])


@chunk_lens
def test_warm_equals_cold_bit_for_bit(rig, chunk_len_max: int) -> None:
    cold = rig(cache_bytes=0, lanes=1, chunk_len_max=256)
    warm = rig(cache_bytes=2**26, lanes=3, chunk_len_max=chunk_len_max)
    ask(cold, PROMPTS, side_by_side=False)
    for prompts in (PROMPTS, again(PROMPTS)):
        # Where a lone row differs, only replies decoded alone can equal those of one lane.
        ask(warm, prompts, side_by_side=lone_row_alike())
    for name, prompt in PROMPTS.items():
        assert warm.tokens(name) == warm.tokens(f"{name} again") == cold.tokens(name)
        assert warm.finished(f"{name} again").usage.cached_tokens == len(prompt.tokens)


class First:
    """Samplers that note the logits of each request's first token: what reading its prompt gave."""

    def __init__(self) -> None:
        self.logits: dict[str, Array] = {}

    def __call__(self, request: Request) -> Sample:
        def sample(tokens: list[int], logits: Array) -> int:
            self.logits.setdefault(request.id, logits.copy())
            return int(logits.argmax())

        return sample


class Every:
    """Samplers that note the logits of each token."""

    def __init__(self) -> None:
        self.logits: dict[str, list[Array]] = {}

    def __call__(self, request: Request) -> Sample:
        def sample(tokens: list[int], logits: Array) -> int:
            self.logits.setdefault(request.id, []).append(logits.copy())
            return int(logits.argmax())

        return sample


@chunk_lens
def test_what_reading_a_prompt_gives_does_not_tell_how_it_was_cut_or_beside_whom(
    rig, chunk_len_max: int
) -> None:
    cold_first, warm_first = First(), First()
    cold = rig(cache_bytes=0, lanes=1, chunk_len_max=256, sampler_for=cold_first)
    warm = rig(cache_bytes=2**26, lanes=3, chunk_len_max=chunk_len_max, sampler_for=warm_first)
    rows = {}
    for name, prompt in PROMPTS.items():
        ask(cold, {name: prompt}, side_by_side=False)
        rows[prompt.tokens] = cold.runner.save(0, 0, len(prompt.tokens)).rows
    for prompts in (PROMPTS, again(PROMPTS)):
        ask(warm, prompts, side_by_side=True)
        assert any(len(step.spans) > 1 for step in warm.steps)
        for lane in range(3):  # what it was lent for last
            tokens = tuple(warm.lanes[lane].resident)
            for name, array in warm.runner.save(lane, 0, len(tokens)).rows.items():
                np.testing.assert_array_equal(array, rows[tokens][name])
    for name in PROMPTS:
        for found in (name, f"{name} again"):
            np.testing.assert_array_equal(warm_first.logits[found], cold_first.logits[name])


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_turn_that_was_read_ahead_is_what_a_cold_one_is(rig, overtaken: bool) -> None:
    """Whether reading ahead was through, or the turn came when it was half done."""
    cold_first, warm_first = First(), First()
    cold = rig(cache_bytes=0, lanes=1, chunk_len_max=256, sampler_for=cold_first)
    warm = rig(cache_bytes=2**26, lanes=1, chunk_len_max=8, sampler_for=warm_first)
    warm.run(request_of("first", PROMPTS["tail"], max_tokens=24))
    said = (*PROMPTS["tail"].tokens, *warm.tokens("first"))
    ahead = Prompt(said, (Boundary(len(said), BoundaryKind.TURN),))
    idle = replace(request_of("ahead", ahead, max_tokens=0), priority=Priority.IDLE)
    warm.engine.submit(idle)
    warm.until(lambda: warm.cache.tally.of(AHEAD, "read") >= (8 if overtaken else 24))
    turn = request_of("turn", prompt_of((*said, *some_tokens(4, 9))), max_tokens=12)
    warm.run(turn)
    cold.run(turn)
    reused = warm.finished("turn").usage.cached_tokens
    assert len(PROMPTS["tail"].tokens) < reused <= len(said)
    assert (reused < len(said)) == overtaken
    np.testing.assert_array_equal(warm_first.logits["turn"], cold_first.logits["turn"])
    assert warm.tokens("turn") == cold.tokens("turn")


def test_restored_memory_is_the_same_to_the_bit(rig) -> None:
    one = rig(lanes=2)
    runner, lanes = one.runner, one.lanes
    snapshots = []
    for start, end in ((0, 12), (12, 33)):
        runner.run(Step((Span(0, start, HEAD[start:end]),), prefill=True))
        snapshots.append(runner.save(0, start, end))
    expected = runner.run(Step((Span(0, 33, TAIL),), prefill=True))[0].copy()
    runner.restore(1, HEAD, snapshots)
    found = runner.run(Step((Span(1, 33, TAIL),), prefill=True))[1]
    np.testing.assert_array_equal(found, expected)
    for tensor in lanes.layout.tensors:
        held = lanes.buffers(0, 2)[tensor.name].array()
        held = held[:, :, :53] if tensor.kind is MemoryKind.ROWS else held
        np.testing.assert_array_equal(held[0], held[1])


@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
@pytest.mark.parametrize("generated", [0, 1, 6])
def test_a_parked_lane_comes_back_to_the_bit(rig, disk: bool, generated: int) -> None:
    """Decoded rows and state too: every token's logits are those of one that was never parked."""
    asked = request_of("agent", PROMPTS["tail"], max_tokens=12, priority=Priority.AGENT)
    alone, parked = Every(), Every()
    undisturbed = rig(lanes=1, chunk_len_max=8, cache_bytes=0, sampler_for=alone)
    undisturbed.run(asked)
    rows = {"parked_disk_rows": 1000} if disk else {"parked_rows": 1000}
    one = rig(lanes=1, chunk_len_max=8, cache_bytes=0, sampler_for=parked, **rows)
    one.engine.submit(asked)
    one.until(lambda: len(one.tokens("agent")) >= generated and len(one.steps) >= 3)
    one.run(request_of("person", some_tokens(9, 20)))
    assert one.cache.tally.of(PARKED) == 1
    assert len(parked.logits["agent"]) == 12
    np.testing.assert_array_equal(parked.logits["agent"], alone.logits["agent"])
