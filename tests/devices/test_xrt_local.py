"""A tiny Llama on a simulated NPU: kernels compiled for this machine give the CPU's logits."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flm.devices.xrt.buffers import Span
from flm.devices.xrt.build import beside
from flm.devices.xrt.graph import read
from flm.devices.xrt.plan import Dispatch, HostPart, plan_of
from flm.devices.xrt.report import reports_of
from flm.devices.xrt.toolchains import Simulator
from flm.errors import DeviceLost, PassCancelled
from flm.graph.weights.gguf import GgufFile
from npu_kernels import fakexrt
from npu_kernels.bf16 import rounded
from tests.devices.local import CAPACITY, LocalModel
from tests.kernels.host import cosine, needs_compiler
from tests.models.drive import FIXTURES, Graph

FOLDER = FIXTURES / "llama"
IDS = np.load(FOLDER / "expected.npz")["ids"]
ON_CPU = ["QEmbeddingMin"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def graph(folder: Path) -> Graph:
    return Graph(GgufFile(FOLDER / "llama.Q4_K_M.gguf"), folder, lanes=2, capacity=CAPACITY)


@pytest.fixture(scope="module")
def model(graph: Graph, folder: Path) -> Iterator[LocalModel]:
    before = fakexrt.current()
    fakexrt.use(fakexrt.Machine())
    model = LocalModel(graph, folder, lanes=2)
    yield model
    model.device.close()
    assert fakexrt.current().contexts == 0
    fakexrt.use(before)


def test_what_has_a_kernel_is_dispatched_and_the_rest_is_few_parts(
    graph: Graph, folder: Path
) -> None:
    plan = plan_of(read(folder / "graph.onnx", CAPACITY))
    parts = [step for step in plan.steps if isinstance(step, HostPart)]
    assert [node.op_type for part in parts for node in part.nodes] == ON_CPU
    assert len(plan.dispatches) == 28
    names = {name for memory in plan.rows for name in memory.names}
    assert names == {tensor.name for tensor in graph.emitted.layout.rows}


def test_a_room_is_synced_before_the_other_side_needs_it_and_only_then(
    graph: Graph, folder: Path
) -> None:
    plan = plan_of(read(folder / "graph.onnx", CAPACITY))
    on_host: set[str] = set()
    on_device: set[str] = set()
    for step in plan.steps:
        on_host.update(step.fetched)
        if isinstance(step, HostPart):
            needed = {plan.views[name].room for name in step.inputs if name in plan.views}
            assert needed <= on_host, step
            on_device -= set(step.outputs)
            on_host |= set(step.outputs)
            on_device |= set(step.sent)
        else:
            assert isinstance(step, Dispatch)
            assert {copied.source.room for copied in step.copies} <= on_host
            on_device |= {copied.target.room for copied in step.copies}
            rooms = {place.room for place in step.arguments.values() if hasattr(place, "room")}
            assert rooms - step.written <= on_device, step
            on_host -= step.written
            on_device |= step.written
    assert "logits" in on_host | set(plan.fetched)


@needs_compiler
def test_decode_gives_the_cpu_s_logits(model: LocalModel) -> None:
    """Over the end of a block of rows."""
    model.decodes(IDS, 14, 4)


@needs_compiler
@pytest.mark.slow
def test_64_tokens_give_the_cpu_s_logits(model: LocalModel) -> None:
    model.decodes(IDS, 8, 64)


@needs_compiler
def test_logits_whose_best_is_not_the_one_that_was_found_are_a_lost_device(
    model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if what came had been somewhere else's, or was never synced."""
    model.run(IDS[:9], 0)
    fetch = Span.from_device

    def spoiled(span: Span, *args: int) -> None:
        fetch(span, *args)
        if span.nbytes == 4 * 128 * -(-model.vocabulary // 128):
            span.array.view(np.float32)[5] += 1e3

    with monkeypatch.context() as patched:
        patched.setattr(Span, "from_device", spoiled)
        with pytest.raises(DeviceLost, match=r"has .* of token 5"):
            model.run([IDS[9]], 9)
    model.run([IDS[9]], 9)


@needs_compiler
def test_rows_are_the_same_read_in_any_chunks_and_put_back(graph: Graph, model: LocalModel) -> None:
    """In bfloat16, the kernels' own: what restore gives is what reading gave."""
    names = [tensor.name for tensor in graph.emitted.layout.rows]
    whole = model.run(IDS[:30], 0)
    wanted = {name: model.rows(name, range(30)) for name in names}
    for name, rows in wanted.items():
        np.testing.assert_array_equal(rows, rounded(rows), err_msg=name)
    model.run(IDS[:12], 0, lane=1)
    for name in names:
        part = model.memory[name].part(1, 2)
        part.array()[0, :, 12:20] = wanted[name][:, 12:20]
        part.to_device(range(12, 20))
    np.testing.assert_array_equal(model.run(IDS[20:30], 20, lane=1), whole)
    for name in names:
        np.testing.assert_array_equal(model.rows(name, range(30), lane=1), wanted[name])
    np.testing.assert_array_equal(model.run([IDS[30]], 30), model.run([IDS[30]], 30, lane=1))


@needs_compiler
def test_lanes_that_decode_together_give_what_each_gives_alone(model: LocalModel) -> None:
    model.run(IDS[:9], 0)
    model.run(IDS[3:20], 0, lane=1)
    together = model.run([[5], [6]], [9, 17])
    alone = np.stack([model.run([5], 9)[0], model.run([6], 17, lane=1)[0]])
    np.testing.assert_array_equal(together, alone)


@needs_compiler
def test_a_row_that_a_kernel_appended_comes_to_the_host_when_asked_for(
    graph: Graph, model: LocalModel
) -> None:
    graph.read(IDS[:10], [10])
    model.run(IDS[:10], 0)
    graph.run([IDS[10]], 10)
    model.run([IDS[10]], 10)
    for tensor in graph.emitted.layout.rows:
        wanted = graph.memory[tensor.name].array()[0, :, 10:11]
        assert cosine(model.rows(tensor.name, range(10, 11)), wanted) > 0.9999, tensor.name


@needs_compiler
def test_a_pass_ends_where_it_is_told_to_and_the_next_is_whole(model: LocalModel) -> None:
    model.run(IDS[:10], 0)
    wanted = model.run([IDS[10]], 10)
    asked = iter([True] * 5)
    with pytest.raises(PassCancelled):
        model.run([IDS[10]], 10, go_on=lambda: next(asked, False))
    np.testing.assert_array_equal(model.run([IDS[10]], 10), wanted)


@needs_compiler
def test_what_a_token_reads_is_what_the_report_says(model: LocalModel, folder: Path) -> None:
    report, _ = reports_of(folder / "graph.onnx", beside(Simulator()), capacity=CAPACITY)
    assert report.on_cpu == dict(Counter(ON_CPU))
    assert report.on_npu["QLinearMin"] == 12
    assert (report.dispatches, report.host_parts) == (28, 1)
    counts = fakexrt.current().counts
    before = counts.bytes_read
    model.run([5], 0)
    assert counts.bytes_read - before == report.bytes_read
    assert report.bytes_read_per_row > 0
