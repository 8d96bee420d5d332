"""Prompts read by kernels on a simulated NPU: the CPU's logits, and the same bits for any cut."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from flm.devices.xrt.buffers import ROOT_BYTES
from flm.devices.xrt.phases import phases_of
from flm.devices.xrt.plan import CHUNK, HostPart
from flm.errors import PassCancelled
from flm.graph.weights.gguf import GgufFile
from npu_kernels import fakexrt
from tests.devices.held import held_bytes
from tests.devices.local import CAPACITY, LocalModel, round_scales
from tests.kernels.host import needs_compiler
from tests.models.drive import FIXTURES, Graph

# A function that no kernel takes, and the one token of a prompt whose logits are wanted.
ON_CPU = {
    "llama": ["QEmbeddingMin", "Gather", "Gather"],
    "qwen35_k4v8": ["QEmbedding", *2 * ["Gather"]],
}
GRID = {"llama": 1, "qwen35_k4v8": CHUNK}  # where a prompt may be cut


@dataclass(frozen=True)
class Fixture:
    name: str
    folder: Path
    graph: Graph
    ids: np.ndarray

    @property
    def cut(self) -> int:
        """One within a chunk, if that may be."""
        return CHUNK + 5 if GRID[self.name] == 1 else CHUNK


@pytest.fixture(scope="module", params=ON_CPU)
def fixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    source = GgufFile(FIXTURES / name / f"{name}.Q4_K_M.gguf")
    graph = Graph(source, folder, capacity=CAPACITY)
    round_scales(folder)  # as test_xrt_qwen35 has it
    graph.program = graph.device.load(folder / "graph.onnx")
    ids = np.load(FIXTURES / name / "expected.npz")["ids"]
    return Fixture(name, folder, graph, np.concatenate([ids, ids[::-1]]))


@pytest.fixture(scope="module")
def model(fixture: Fixture) -> Iterator[LocalModel]:
    before = fakexrt.current()
    fakexrt.use(fakexrt.Machine())
    model = LocalModel(fixture.graph, fixture.folder, lanes=2)
    yield model
    model.device.close()
    assert fakexrt.current().contexts == 0
    fakexrt.use(before)


def test_a_chunk_is_dispatched_but_for_what_has_no_kernel(fixture: Fixture) -> None:
    _, prefill = phases_of(fixture.folder / "graph.onnx", CAPACITY)
    assert prefill
    parts = [step for step in prefill.plan.steps if isinstance(step, HostPart)]
    assert [node.op_type for part in parts for node in part.nodes] == ON_CPU[fixture.name]
    names = {name for memory in prefill.plan.memory for name in memory.names}
    assert names == {tensor.name for tensor in fixture.graph.emitted.layout.tensors}


@needs_compiler
def test_a_prompt_gives_the_cpu_s_logits(fixture: Fixture, model: LocalModel) -> None:
    """A whole chunk and some of another, and what is decoded after it."""
    model.reads(fixture.ids, CHUNK + 4, 1)


@needs_compiler
def test_what_a_device_holds_is_what_plans_ask_for(fixture: Fixture, model: LocalModel) -> None:
    """But for instructions, and the ends of what buffers are cut from."""
    model.run(fixture.ids[:2], 0)  # memory has its twins from the first pass on
    held = held_bytes(fixture.folder / "graph.onnx", capacity=CAPACITY, lanes=2)
    pinned = fakexrt.current().pinned_bytes
    assert held < pinned < held + 2 * ROOT_BYTES + 2**20


@needs_compiler
@pytest.mark.slow
def test_a_long_prompt_gives_the_cpu_s_logits(fixture: Fixture, model: LocalModel) -> None:
    model.reads(fixture.ids, 3 * CHUNK + 9, 8)


@needs_compiler
def test_a_pass_ends_where_it_is_told_to_and_the_next_is_whole(
    fixture: Fixture, model: LocalModel
) -> None:
    model.forget()
    wanted = model.run(fixture.ids[:CHUNK], 0)
    asked = iter([True] * 9)
    model.forget()
    with pytest.raises(PassCancelled):
        model.run(fixture.ids[:CHUNK], 0, go_on=lambda: next(asked, False))
    model.forget()
    np.testing.assert_array_equal(model.run(fixture.ids[:CHUNK], 0), wanted)


@needs_compiler
@pytest.mark.slow
def test_what_is_saved_at_a_cut_and_put_back_goes_on_bit_for_bit(
    fixture: Fixture, model: LocalModel
) -> None:
    """In another lane, as after a single pass."""
    tensors, cut, length = fixture.graph.emitted.layout.tensors, fixture.cut, 2 * CHUNK + 7
    model.forget()
    whole = model.run(fixture.ids[:length], 0)
    then = model.run([fixture.ids[length]], length)
    model.forget()
    model.run(fixture.ids[:cut], 0)
    for tensor in tensors:
        here, there = (model.memory[tensor.name].part(n, n + 1) for n in range(2))
        rows = range(cut) if tensor in fixture.graph.emitted.layout.rows else None
        here.to_host(rows)
        there.array()[...] = here.array()
        there.to_device(rows)
    again = model.run(fixture.ids[cut:length], cut, lane=1)
    np.testing.assert_array_equal(again, whole)
    np.testing.assert_array_equal(model.run([fixture.ids[length]], length, lane=1), then)


@needs_compiler
@pytest.mark.slow
def test_cuts_change_no_bit(fixture: Fixture, model: LocalModel) -> None:
    length, wanted = 2 * CHUNK + 7, None
    for cuts in ([length], [fixture.cut, 2 * CHUNK, length]):
        model.forget()
        start = 0
        for end in cuts:
            logits = model.run(fixture.ids[start:end], start)
            start = end
        wanted = logits if wanted is None else wanted
        np.testing.assert_array_equal(logits, wanted)
