"""What pyxrt does, recorded from the real module: fakexrt does it too.

Where there are a real pyxrt and an NPU, the same tests run on them. There NPU_CONFORMANCE names a
folder with design.xclbin and insts.bin, compiled from a pass-through of 4096 bytes, first buffer to
second.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from npu_kernels import fakexrt
from tests.kernels.npu import BYTES, KERNEL, Npu, Package, loopback

CONTENT = bytes(range(256)) * (BYTES // 256)
UNKNOWN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(params=["fakexrt", pytest.param("pyxrt", marks=pytest.mark.real_xrt)])
def xrt(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    if request.param == "fakexrt":
        before = fakexrt.current()
        fakexrt.use(fakexrt.Machine())
        yield fakexrt
        fakexrt.use(before)
        return
    real = pytest.importorskip("pyxrt", reason="pyxrt is not here: it comes with XRT")
    if not real.enumerate_devices():
        pytest.skip("pyxrt is here, an NPU is not")
    yield real


@pytest.fixture
def package(xrt: ModuleType, tmp_path: Path) -> Package:
    if xrt is fakexrt:
        return loopback(tmp_path)
    folder = os.environ.get("NPU_CONFORMANCE")
    if folder is None:
        pytest.skip("NPU_CONFORMANCE names no compiled pass-through")
    words = np.fromfile(Path(folder, "insts.bin"), np.uint32)
    return Package(Path(folder, "design.xclbin"), words)


@pytest.fixture
def npu(xrt: ModuleType, package: Package) -> Npu:
    return Npu(xrt, package)


def test_a_copy_through_the_array(npu: Npu) -> None:
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(BYTES))
    run = npu.run(source, target)
    run.start()
    assert run.wait(2000) == npu.xrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    assert npu.seen(target) == CONTENT


def test_a_kernel_called_sets_its_arguments_and_starts(npu: Npu) -> None:
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(BYTES))
    run = npu.kernel(3, npu.instructions, npu.instructions.size(), source, target)
    assert run.wait() == npu.xrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    assert npu.seen(target) == CONTENT


def test_a_run_is_started_again_with_other_arguments(npu: Npu) -> None:
    run = npu.run(npu.buffer(bytes(BYTES)), npu.buffer(bytes(BYTES)))
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(BYTES))
    run.set_arg(3, source)
    run.set_arg(4, target)
    for _ in range(3):
        run.start()
        run.wait2()
    assert npu.seen(target) == CONTENT


def test_parts_of_a_buffer_are_arguments(npu: Npu) -> None:
    root = npu.buffer(bytes(BYTES) + CONTENT + bytes(BYTES))
    source, target = (npu.xrt.bo(root, BYTES, offset) for offset in (BYTES, 2 * BYTES))
    run = npu.run(source, target)
    run.start()
    run.wait2()
    assert npu.seen(root) == bytes(BYTES) + 2 * CONTENT
    assert source.address() == root.address() + BYTES
    assert source.size() == BYTES


def test_states(npu: Npu) -> None:
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(BYTES))
    run = npu.run(source, target)
    assert run.state() == npu.xrt.ert_cmd_state.ERT_CMD_STATE_NEW
    run.start()
    with pytest.raises(RuntimeError, match="bad command state, can't launch"):
        run.start()
    run.wait()
    assert run.state() == npu.xrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    assert int(run.state()) == 4
    assert run.state() != 4


def test_a_running_state_has_no_name(xrt: ModuleType) -> None:
    assert str(xrt.ert_cmd_state(3)) == "ert_cmd_state.???"
    assert int(xrt.ert_cmd_state(3)) == 3


def test_groups_of_arguments(npu: Npu) -> None:
    assert [npu.kernel.group_id(index) for index in (0, 1, 2, 3, 7)] == [
        *(0x1FFFF, 0x10001, 0x1FFFF, 0x10000, 0x10000)
    ]


def test_an_xclbin_is_told_apart(xrt: ModuleType, package: Package) -> None:
    found = xrt.xclbin(str(package.xclbin))
    (kernel,) = found.get_kernels()
    assert kernel.get_name() == KERNEL
    assert kernel.get_num_args() >= 8
    assert [memory.get_tag() for memory in found.get_mems()] == ["HOST", "SRAM"]
    assert found.get_uuid().to_string() == found.get_uuid().to_string().lower()


def test_a_context_needs_an_xclbin_that_is_registered(xrt: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="No xclbin with uuid"):
        xrt.hw_context(xrt.device(0), xrt.uuid(UNKNOWN))


def test_a_kernel_that_is_not_there(npu: Npu) -> None:
    with pytest.raises(RuntimeError, match="No such kernel 'NOPE'"):
        npu.xrt.kernel(npu.context, "NOPE")


def test_a_device_that_is_not_there(xrt: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="No such device with index '99'"):
        xrt.device(99)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("normal", "unsupported buffer type: none flag"),
        ("device_only", "Bad BO type"),
        ("p2p", "Bad BO type"),
        ("svm", "Bad BO type"),
    ],
)
def test_flags_that_no_npu_has(npu: Npu, flags: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        npu.xrt.bo(npu.device, 4096, getattr(npu.xrt.bo.flags, flags), npu.kernel.group_id(3))


def test_a_buffer_of_nothing(npu: Npu) -> None:
    with pytest.raises(RuntimeError):
        npu.buffer(0)


def test_instructions_live_in_the_devices_heap(npu: Npu) -> None:
    assert 0x04000000 <= npu.instructions.address() < 0x04000000 + (512 << 20)


@pytest.mark.parametrize(("size", "offset"), [(4096, 1), (8192, 0), (1, 4096)])
def test_a_part_stays_within_its_buffer(npu: Npu, size: int, offset: int) -> None:
    with pytest.raises(RuntimeError):
        npu.xrt.bo(npu.buffer(4096), size, offset)


def test_a_view_and_the_buffer_are_one(npu: Npu) -> None:
    buffer = npu.buffer(CONTENT)
    view = np.frombuffer(buffer.map(), np.uint8)
    assert bytes(view) == CONTENT
    view[5] = 77
    assert buffer.map()[5] == 77


def test_a_span_is_synced(npu: Npu) -> None:
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(BYTES))
    source.map()[64:128] = bytes(64)
    source.sync(npu.to_device, 64, 64)
    run = npu.run(source, target)
    run.start()
    run.wait2()
    target.sync(npu.from_device, 128, 0)
    assert bytes(target.map()[:128]) == CONTENT[:64] + bytes(64)


def test_sync_past_the_end(npu: Npu) -> None:
    with pytest.raises(RuntimeError):
        npu.buffer(4096).sync(npu.to_device, 64, 4064)


def test_a_number_over_32_bits(npu: Npu) -> None:
    with pytest.raises(TypeError):
        npu.run().set_arg(0, 1 << 31)


def test_a_number_past_the_arguments(npu: Npu) -> None:
    with pytest.raises(IndexError):
        npu.run().set_arg(64, 3)


def test_what_is_bound_but_cannot_be_called(npu: Npu) -> None:
    run = npu.run()
    for call in (run.wait2, npu.xrt.runlist(npu.context).wait):
        with pytest.raises(TypeError):
            call(1000)
    with pytest.raises(TypeError):
        run.add_callback(npu.xrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED, lambda *_: None, None)


def test_a_list_of_runs(npu: Npu) -> None:
    """Again with other arguments; an empty one too."""
    pairs = [(npu.buffer(CONTENT), npu.buffer(bytes(BYTES))) for _ in range(3)]
    runs = [npu.run(*pair) for pair in pairs]
    many = npu.xrt.runlist(npu.context)
    many.execute()
    many.wait()
    for run in runs:
        many.add(run)
    with pytest.raises(RuntimeError):
        runs[0].start()
    many.execute()
    many.wait()
    assert [npu.seen(target) for _, target in pairs] == [CONTENT] * 3
    assert runs[-1].state() == npu.xrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    other = npu.buffer(bytes(BYTES))
    runs[1].set_arg(4, other)
    many.execute()
    many.wait()
    assert npu.seen(other) == CONTENT


def test_what_a_device_tells(xrt: ModuleType) -> None:
    device = xrt.device(0)
    told = {key: device.get_info(getattr(xrt.xrt_info_device, key)) for key in ("name", "bdf")}
    assert all(isinstance(value, str) and value for value in told.values())
    assert xrt.device(told["bdf"]).get_info(xrt.xrt_info_device.name) == told["name"]
