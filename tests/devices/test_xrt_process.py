"""A device in a process of its own: as good as one in ours, and nothing is left of it."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flm.core.tensor import TensorSpec
from flm.devices.xrt.arena import Arena
from flm.devices.xrt.device import DEATHS_MAX, DEATHS_S, XrtDevice
from flm.devices.xrt.messages import (
    Allocate,
    BadMessage,
    Close,
    Done,
    Failed,
    Load,
    Loaded,
    Open,
    Part,
    Run,
    Sync,
    decode,
    encode,
)
from flm.errors import DeviceFault, DeviceLost, DeviceUnavailable, NoRoom, PassCancelled
from flm.memory.layout import MemoryLayout
from tests.devices.test_contract import ROWS, STAND_IN, STATE, TOKENS, Model, host, xrt_model

LAYOUT = MemoryLayout(ROWS + STATE)
SPEC = TensorSpec("keys", (3, 2, 8, 4))
PATIENCE_S = 60


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def model(tmp_path, said) -> Iterator[Model]:
    model = xrt_model(tmp_path, LAYOUT, say=said.append)
    yield model
    model.device.close()


def until(done: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < ends, "never came to pass"
        os.sched_yield()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def trouble(tmp_path: Path, what: str) -> None:
    (tmp_path / "trouble").write_text(what)


# Messages


@pytest.mark.parametrize(
    "message",
    [
        Open("npu", 4, 8193),
        Allocate(3, SPEC, 4096),
        Load(1, "/model/ä.onnx"),
        Sync(Part(3, 0, 2), True, None),
        Sync(Part(3, 0, 2), False, (4, 9)),
        Run(1, 77, ("ids", "keys"), (1, 0, 1, 3, 0, 1)),
        Close(),
        Done(),
        Loaded((SPEC,), (), 32),
        Failed("NoRoom", "no memory", "more of it"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_arrives_as_it_was_sent(message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"Close": {}, "Done": {}}',
        b'{"Popen": {}}',
        b'{"Free": {"buffer": "1"}}',
        b'{"Free": {"buffer": true}}',
        b'{"Free": {"buffer": 1, "more": 2}}',
        b'{"Free": {}}',
        b'{"Sync": {"part": {"buffer": 1, "start": 0, "stop": 1}, "to_device": true, "rows": [1]}}',
        b'{"Loaded": {"inputs": {}, "outputs": []}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_refused(data) -> None:
    with pytest.raises(BadMessage):
        decode(data)


# Memory


def test_what_was_given_back_is_zero_when_it_is_taken_again() -> None:
    arena = Arena.create()
    first, other = arena.take(SPEC), arena.take(SPEC)
    arena.look(SPEC, first)[...] = 7
    arena.look(SPEC, other)[...] = 8
    arena.give_back(SPEC, first)
    assert arena.take(SPEC) == first
    assert not arena.look(SPEC, first).any()
    assert (arena.look(SPEC, other) == 8).all()
    arena.close()


def test_memory_outlives_neither_its_buffer_nor_its_views(model: Model) -> None:
    device = model.device
    assert isinstance(device, XrtDevice)
    before = device.allocate(SPEC).part(1, 2).array()
    gc.collect()
    beside = device.allocate(SPEC)
    assert not np.shares_memory(before, beside.array()), "a view of it is still here"
    before[...] = 3
    address = before.__array_interface__["data"][0]
    del before
    gc.collect()
    for _ in range(2):
        again = device.allocate(SPEC)
        if again.part(1, 2).array().__array_interface__["data"][0] == address:
            break
    else:
        raise AssertionError("what nobody has is not used again")
    again.to_host()
    assert not again.array().any()


# Passes


def test_a_pass_is_cancelled_from_another_thread(model: Model, tmp_path: Path) -> None:
    memory, arena = model.memory(), model.device.arena
    expected = model.run(memory, [TOKENS[:4]], [0], lane=1)
    trouble(tmp_path, "wait")
    beats = arena.beats
    with ThreadPoolExecutor(1) as other:
        passing = other.submit(model.run, memory, [TOKENS[:4]], [0])
        until(lambda: arena.beats > beats)
        model.program.cancel()
        with pytest.raises(PassCancelled):
            passing.result(PATIENCE_S)
    np.testing.assert_array_equal(model.run(memory, [TOKENS[:4]], [0], lane=2), expected)


# Ends


@pytest.mark.parametrize("how", ["end", "lost"])
def test_a_device_that_ends_in_a_pass_is_lost_once_and_then_back(
    model: Model, tmp_path: Path, said: list[str], how: str
) -> None:
    memory = model.memory()
    expected = model.run(memory, [TOKENS[:4]], [0])
    held = host(memory)
    assert "kernels" in said.pop(0)  # none were there, so they were built
    trouble(tmp_path, how)
    with pytest.raises(DeviceLost) as caught:
        model.run(memory, [TOKENS[4:6]], [4])
    assert "--device cpu" in caught.value.fix or how == "lost"
    for name, buffer in memory.items():
        np.testing.assert_array_equal(buffer.array(), held[name], err_msg="the host's copy")
    assert not any(array.any() for array in host(memory).values()), "the device's copy"
    np.testing.assert_array_equal(model.run(memory, [TOKENS[:4]], [0]), expected)
    (line,) = said
    assert line.startswith("The device is back after ")


def test_a_worker_killed_while_it_computes_is_started_anew(model: Model, tmp_path: Path) -> None:
    memory, device = model.memory(), model.device
    expected = model.run(memory, [TOKENS[:4]], [0])
    trouble(tmp_path, "wait")
    beats, pid = device.arena.beats, device.pid
    with ThreadPoolExecutor(1) as other:
        passing = other.submit(model.run, memory, [TOKENS[:4]], [0])
        until(lambda: device.arena.beats > beats)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DeviceLost, match="signal 9"):
            passing.result(PATIENCE_S)
    np.testing.assert_array_equal(model.run(memory, [TOKENS[:4]], [0]), expected)
    assert device.pid != pid


def test_a_device_that_does_not_move_is_lost(tmp_path: Path) -> None:
    model = xrt_model(tmp_path, LAYOUT, still_s_max=0.2)
    memory, pid = model.memory(), model.device.pid
    trouble(tmp_path, "hang")
    with pytest.raises(DeviceLost, match=r"has not moved for 0\.2 s"):
        model.run(memory, [TOKENS[:4]], [0])
    assert gone(pid)
    model.device.close()


def test_a_worker_that_ends_too_often_rests(tmp_path: Path) -> None:
    now = [0.0]
    model = xrt_model(tmp_path, LAYOUT, clock=lambda: now[0])
    memory, device = model.memory(), model.device
    for _ in range(DEATHS_MAX):
        trouble(tmp_path, "end")
        with pytest.raises(DeviceLost, match="signal 9"):
            model.run(memory, [TOKENS[:4]], [0])
    for _ in range(3):
        with pytest.raises(DeviceLost, match=r"not started again for 600 s") as caught:
            model.run(memory, [TOKENS[:4]], [0])
        assert device.pid is None
    assert "flm validate" in caught.value.fix
    now[0] += DEATHS_S
    model.run(memory, [TOKENS[:4]], [0])
    device.close()


def test_a_mistake_of_ours_is_said_in_a_line_and_is_no_death_of_the_device(
    model: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    memory = model.memory()
    expected = model.run(memory, [TOKENS[:4]], [0])
    for _ in range(DEATHS_MAX + 1):
        trouble(tmp_path, "fault")
        with pytest.raises(DeviceFault, match="KernelFault: qlinear: lane or part") as caught:
            model.run(memory, [TOKENS[:4]], [0])
        assert "issues" in caught.value.fix
    np.testing.assert_array_equal(model.run(memory, [TOKENS[:4]], [0]), expected)
    assert "Traceback" not in capfd.readouterr().err


def test_a_device_that_cannot_be_opened_says_so() -> None:
    with pytest.raises(DeviceUnavailable, match="no such device") as caught:
        XrtDevice("npu-sim", command=STAND_IN, threads=0)
    assert caught.value.fix == "buy one"


def test_a_simulator_without_a_compiler_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceUnavailable, match=r"no g\+\+") as caught:
        XrtDevice("npu-sim")
    assert "apt install" in caught.value.fix


def test_a_worker_that_ends_before_it_reads_says_how() -> None:
    with pytest.raises(DeviceLost, match="ended with status 3"):
        XrtDevice("npu-sim", command=(sys.executable, "-c", "raise SystemExit(3)"))


def test_what_does_not_fit_changes_nothing(model: Model) -> None:
    memory = model.memory()
    expected = model.run(memory, [TOKENS[:4]], [0])
    with pytest.raises(NoRoom):
        model.device.allocate(TensorSpec("too much", SPEC.shape))
    np.testing.assert_array_equal(model.run(memory, [TOKENS[:4]], [0], lane=1), expected)


def test_the_worker_ends_with_the_device(tmp_path: Path) -> None:
    model = xrt_model(tmp_path, LAYOUT)
    pid = model.device.pid
    model.device.close()
    assert gone(pid)


PARENT = """
import sys, time
from flm.devices.xrt.device import XrtDevice
device = XrtDevice("npu-sim", command=sys.argv[1:])
print(device.pid, flush=True)
time.sleep(600)
"""


def test_the_worker_ends_with_whoever_started_it() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(
        [sys.executable, "-c", PARENT, *STAND_IN], stdout=subprocess.PIPE, env=environ
    )
    with started as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    until(lambda: gone(pid))
