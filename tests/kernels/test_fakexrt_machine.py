"""What goes wrong on a machine, made to happen; and its limits."""

import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from uuid import UUID

import pytest

from npu_kernels import fakexrt
from npu_kernels.fakexrt import Fault, Machine, Misuse
from npu_kernels.fakexrt.machine import MIB
from npu_kernels.txn import Write
from npu_kernels.txn.geometry import Place
from npu_kernels.xclbin import write
from tests.kernels.npu import BYTES, IDENTITY, LOOPBACK, Npu, loopback
from tests.kernels.txn_streams import DRAINED, copy, drain

CONTENT = bytes(range(256)) * (BYTES // 256)
COMPLETED = fakexrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED


def copied(npu: Npu) -> tuple[fakexrt.run, fakexrt.bo, fakexrt.bo]:
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(BYTES))
    return npu.run(source, target), source, target


@pytest.mark.parametrize(
    ("fault", "state", "deadly"),
    [
        (Fault.ERROR, 5, False),
        (Fault.ABORT, 6, True),
        (Fault.TIMEOUT, 8, True),
    ],
)
def test_a_run_that_fails(
    npu: Npu, machine: Machine, fault: Fault, state: int, deadly: bool
) -> None:
    run, _, target = copied(npu)
    machine.next_run(fault)
    run.start()
    assert int(run.wait(1000)) == int(run.state()) == state
    assert npu.seen(target) == bytes(BYTES)
    if deadly:
        with pytest.raises(Misuse, match="make the context anew"):
            run.start()
        assert "AIE2_DUMP_CTX" in machine.journal[-1]
    else:
        run.start()
        assert run.wait() is COMPLETED


def test_wait2_raises(npu: Npu, machine: Machine) -> None:
    run, *_buffers = copied(npu)
    machine.next_run(Fault.ABORT)
    run.start()
    with pytest.raises(RuntimeError, match=r"Command failed .* \(ERT_CMD_STATE_ABORT\)"):
        run.wait2()


def test_a_host_that_waits_too_short(npu: Npu, machine: Machine) -> None:
    run, _, target = copied(npu)
    machine.next_run(Fault.SLOW)
    run.start()
    assert int(run.wait(10)) == 8
    assert int(run.state()) == 3
    with pytest.raises(Misuse, match="race"):
        target.sync(npu.from_device)
    assert run.wait() is COMPLETED
    assert npu.seen(target) == CONTENT


def test_a_state_that_is_polled_is_seen_running_first(npu: Npu) -> None:
    run, *_buffers = copied(npu)
    run.start()
    assert int(run.state()) == 3
    assert run.state() is COMPLETED


def test_a_run_that_hangs_for_good(npu: Npu, machine: Machine) -> None:
    run, *_buffers = copied(npu)
    machine.next_run(Fault.HANG)
    run.start()
    waiting = threading.Thread(target=run.wait, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()


def test_a_crash_takes_the_process(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from npu_kernels import fakexrt
from tests.kernels.npu import Npu, loopback
npu = Npu(fakexrt, loopback(Path({str(tmp_path)!r})))
fakexrt.current().next_run(fakexrt.Fault.CRASH)
npu.run().start()
"""
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", script], cwd=root, check=False)
    assert ended.returncode == -signal.SIGSEGV


def test_faults_come_in_order(npu: Npu, machine: Machine) -> None:
    run, *_buffers = copied(npu)
    for fault in (None, Fault.ERROR, None):
        machine.next_run(fault)
    states = []
    for _ in range(4):
        run.start()
        states.append(int(run.wait()))
    assert states == [4, 5, 4, 4]


def test_a_list_ends_at_its_first_failure(npu: Npu, machine: Machine) -> None:
    parts = [copied(npu) for _ in range(3)]
    many = fakexrt.runlist(npu.context)
    for run, *_ in parts:
        many.add(run)
    machine.next_run(None)
    machine.next_run(Fault.ABORT)
    many.execute()
    with pytest.raises(RuntimeError, match=r"runlist failed execution \(ERT_CMD_STATE_ABORT\)"):
        many.wait()
    assert [int(run.state()) for run, *_ in parts] == [1, 1, 6]
    assert npu.seen(parts[0][2]) == CONTENT
    assert npu.seen(parts[2][2]) == bytes(BYTES)


def test_a_hundred_runs_are_five_submits(npu: Npu, machine: Machine) -> None:
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(100 * BYTES))
    runs = [npu.run(source, fakexrt.bo(target, BYTES, n * BYTES)) for n in range(100)]
    many = fakexrt.runlist(npu.context)
    for run in runs:
        many.add(run)
    many.execute()
    many.wait()
    assert (machine.counts.submits, machine.counts.runs) == (5, 100)
    assert npu.seen(target) == 100 * CONTENT


def test_an_array_that_hangs(npu: Npu, machine: Machine) -> None:
    """A drain of more than ever comes: the driver resets the array, the context is dead."""
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(2 * BYTES))
    instructions = npu.stream([*copy(64), *drain(2, 1, 64), DRAINED])
    run = npu.run(source, target, instructions=instructions)
    run.start()
    assert int(run.wait(5000)) == 8
    assert "no token comes from S2MM0 of column 0" in machine.journal[-1]
    with pytest.raises(Misuse, match="died"):
        run.start()
    context = fakexrt.hw_context(npu.device, npu.uuid)  # made anew, all is well
    again = fakexrt.kernel(context, "MLIR_AIE")(
        3, npu.instructions, npu.instructions.size(), source, target
    )
    assert again.wait() is COMPLETED


def test_another_context_takes_the_arrays_state(npu: Npu, machine: Machine) -> None:
    source, target = npu.buffer(bytes(BYTES)), npu.buffer(bytes(BYTES))
    parameter = Write(Place(0, 2, 0).address, 7)
    with_it = npu.stream([parameter, *copy(BYTES // 4)])
    first = npu.run(source, target, instructions=with_it)
    second = npu.run(source, target)
    for run in (first, second):
        run.start()
        run.wait2()
    assert npu.seen(target)[:4] == b"\7\0\0\0"  # it stays from dispatch to dispatch
    context = fakexrt.hw_context(npu.device, npu.uuid)
    kernel = fakexrt.kernel(context, "MLIR_AIE")
    kernel(3, npu.instructions, npu.instructions.size(), source, target).wait2()
    second.start()
    second.wait2()
    assert npu.seen(target) == bytes(BYTES)
    assert machine.counts.configurations == 3


def test_what_moved_is_counted(npu: Npu, machine: Machine) -> None:
    run, *_buffers = copied(npu)
    before = machine.counts.bytes_synced
    run.start()
    run.wait2()
    counts = machine.counts
    assert (counts.bytes_read, counts.bytes_written) == (BYTES, BYTES)
    assert counts.bytes_synced == before


@pytest.mark.parametrize(("name", "limit"), [("NPU Strix", 16), ("NPU Phoenix", 6)])
def test_contexts_are_limited(machine: Machine, tmp_path: Path, name: str, limit: int) -> None:
    machine.name = name
    path = tmp_path / "narrow.xclbin"
    image = fakexrt.Simulated(LOOPBACK).image()
    path.write_bytes(write(image, IDENTITY, columns=4))
    device = fakexrt.device(0)
    uuid = device.register_xclbin(fakexrt.xclbin(str(path)))
    contexts = [fakexrt.hw_context(device, uuid) for _ in range(limit)]
    with pytest.raises(RuntimeError, match="CREATE_HWCTX"):
        fakexrt.hw_context(device, uuid)
    contexts.pop()
    contexts.append(fakexrt.hw_context(device, uuid))
    contexts.clear()
    assert machine.contexts == 0


def test_a_design_wider_than_the_array(machine: Machine, tmp_path: Path) -> None:
    machine.name = "NPU Phoenix"
    with pytest.raises(RuntimeError, match="CREATE_HWCTX"):
        Npu(fakexrt, loopback(tmp_path))


def test_pinned_memory_is_limited(npu: Npu, machine: Machine) -> None:
    machine.memlock_bytes = 3 * BYTES
    held = [npu.buffer(BYTES) for _ in range(3)]
    with pytest.raises(RuntimeError, match="Cannot allocate memory"):
        npu.buffer(BYTES)
    held.pop()
    held.append(npu.buffer(BYTES))
    held.clear()
    assert machine.pinned_bytes == 0


def test_the_devices_heap_grows_to_its_limit(npu: Npu, machine: Machine) -> None:
    machine.heap_bytes, machine.heap_bytes_max = MIB, 2 * MIB
    flags, group = fakexrt.bo.flags.cacheable, npu.kernel.group_id(1)
    first = fakexrt.bo(npu.device, MIB - machine.heap_used, flags, group)
    assert machine.heap_size == MIB
    second = fakexrt.bo(npu.device, MIB // 2, flags, group)
    assert machine.heap_size == 2 * MIB
    with pytest.raises(RuntimeError, match="Cannot allocate memory"):
        fakexrt.bo(npu.device, MIB, flags, group)
    assert first.address() + first.size() == second.address()


def test_what_a_device_is(machine: Machine) -> None:
    machine.power_mode, machine.firmware = "Turbo", "9.9"
    told = fakexrt.device(machine.bdf).get_info(fakexrt.xrt_info_device.platform)
    assert '"power_mode": "Turbo"' in told
    assert '"firmware_version": "9.9"' in told
    assert '"device": "0x17f0"' in fakexrt.device(0).get_info(fakexrt.xrt_info_device.pcie_info)
    assert machine.driver in fakexrt.device(0).get_info(fakexrt.xrt_info_device.host)


def test_a_machine_without_an_npu(machine: Machine) -> None:
    machine.devices = 0
    assert fakexrt.enumerate_devices() == 0
    with pytest.raises(RuntimeError, match="No such device with index '0'"):
        fakexrt.device(0)


def test_a_machine_goes_to_another_process() -> None:
    machine = Machine(name="NPU Strix Halo", memlock_bytes=5)
    machine.next_run(Fault.ABORT)
    there = pickle.loads(pickle.dumps(machine))
    assert there == machine
    assert there.take_fault() is Fault.ABORT


def test_two_packages_at_once(npu: Npu, tmp_path: Path) -> None:
    other = Npu(fakexrt, loopback(tmp_path, words=64, identity=UUID(int=7)))
    for one in (npu, other, npu):
        run, _, target = copied(one)
        run.start()
        run.wait2()
        assert one.seen(target) == CONTENT
