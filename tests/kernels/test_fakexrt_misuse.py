"""What the real module answers with a segfault, silence or garbage is a Misuse that says why."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from npu_kernels import fakexrt
from npu_kernels.fakexrt import Misuse
from npu_kernels.txn import NPU2, Operation, Patch
from npu_kernels.xclbin import write
from tests.kernels.npu import BYTES, IDENTITY, Npu, loopback
from tests.kernels.txn_streams import copy, descriptor, drain, fill

CONTENT = bytes(range(256)) * (BYTES // 256)

CALLS: dict[str, Callable[[Npu], object]] = {
    "group_id out of range": lambda npu: npu.kernel.group_id(64),
    "a buffer past the arguments": lambda npu: npu.run().set_arg(8, npu.buffer(64)),
    "a buffer for a scalar": lambda npu: npu.run().set_arg(0, npu.buffer(64)),
    "a number for a buffer": lambda npu: npu.run().set_arg(3, 0),
    "a call with too many": lambda npu: npu.kernel(*range(9)),
    "a call with something else": lambda npu: npu.kernel(3, "instructions"),
    "an empty run": lambda npu: npu.xrt.run().start(),
    "an empty device": lambda npu: npu.xrt.device().get_info(npu.xrt.xrt_info_device.name),
    "an empty context": lambda npu: npu.xrt.kernel(npu.xrt.hw_context(), "MLIR_AIE"),
    "an empty list": lambda npu: npu.xrt.runlist().execute(),
    "an empty kernel of an xclbin": lambda npu: npu.xrt.xclbin.xclbinkernel().get_name(),
    "wait before start": lambda npu: npu.run().wait(),
    "read": lambda npu: npu.buffer(64).read(64, 0),
    "a part of a part": lambda npu: npu.xrt.bo(npu.xrt.bo(npu.buffer(64), 32, 0), 16, 0),
    "a sync for Versal": lambda npu: npu.buffer(64).sync(npu.xrt.XCL_BO_SYNC_BO_GMIO_TO_AIE),
    "load_xclbin": lambda npu: npu.device.load_xclbin("design.xclbin"),
    "a kernel of a device": lambda npu: npu.xrt.kernel(npu.device, npu.uuid, "MLIR_AIE"),
    "a scratchpad": lambda npu: npu.run().get_ctrl_scratchpad_bo(),
    "instructions not set": lambda npu: npu.xrt.run(npu.kernel).start(),
    "instructions of the host": lambda npu: npu.run(instructions=npu.buffer(352)).start(),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_no_program_should_do(npu: Npu, name: str) -> None:
    with pytest.raises(Misuse):
        CALLS[name](npu)


def test_a_misuse_is_no_error_of_pyxrt() -> None:
    assert not issubclass(Misuse, RuntimeError)


def test_what_is_not_here_is_named() -> None:
    with pytest.raises(AttributeError, match="no ELF flow"):
        fakexrt.elf  # noqa: B018


def started(npu: Npu, stream: list[Operation], *sizes: int) -> None:
    buffers = [npu.buffer(bytes(size)) for size in sizes]
    instructions = npu.stream(stream)
    run = npu.run(*buffers, instructions=instructions)
    run.start()
    run.wait()


@pytest.mark.parametrize(
    ("rule", "stream"),
    [
        ("queue-depth", [operation for n in range(5) for operation in drain(n, 1, 64)]),
        ("bounds", copy(BYTES // 4 + 1)),
        ("argument", [Patch(descriptor(0) + 4, 9, 0), *drain(0, 9, 64)]),
        ("descriptor-reuse", [*drain(0, 1, 64), *drain(0, 1, 64)]),
        ("short-transfer", copy(32)),
    ],
)
def test_a_stream_that_breaks_a_rule_never_starts(
    npu: Npu, machine: fakexrt.Machine, rule: str, stream: list[Operation]
) -> None:
    machine.allow = {"outstanding"}
    with pytest.raises(Misuse, match=f"the stream breaks a rule: {rule}"):
        started(npu, stream, BYTES, BYTES)


def test_what_the_checker_cannot_see_is_seen_while_it_runs(npu: Npu) -> None:
    """A fill that nobody drains: taken to be over, but it never is."""
    stream = [*fill(0, 0, 16384, token=False), *copy(64)]
    with pytest.raises(Misuse, match="descriptor-reuse"):
        started(npu, stream, 65536, BYTES)


def test_data_that_is_left_meets_the_next_dispatch(npu: Npu) -> None:
    with pytest.raises(Misuse, match="moved 4096 words and waits for more"):
        started(npu, [*copy(64), *fill(2, 0, 16384, token=False)], 65536, BYTES)


def test_data_that_the_array_keeps_meets_the_next_dispatch(npu: Npu) -> None:
    with pytest.raises(Misuse, match="holds 64 words of 4096"):
        started(npu, [*copy(64), *fill(2, 0, 64, token=False)], BYTES, BYTES)


def test_a_forgotten_sync_to_the_device_shows(npu: Npu) -> None:
    source, target = npu.buffer(BYTES), npu.buffer(bytes(BYTES))
    source.write(CONTENT, 0)
    run = npu.run(source, target)
    run.start()
    run.wait()
    assert npu.seen(target) == b"\xcd" * BYTES


def test_a_forgotten_sync_from_the_device_shows(npu: Npu) -> None:
    source, target = npu.buffer(CONTENT), npu.buffer(bytes(BYTES))
    run = npu.run(source, target)
    run.start()
    run.wait()
    assert bytes(target.map()) == bytes(BYTES)
    assert npu.seen(target) == CONTENT


def test_instructions_that_were_never_synced(npu: Npu) -> None:
    words = npu.package.instructions
    flags = npu.xrt.bo.flags.cacheable
    buffer = npu.xrt.bo(npu.device, words.nbytes, flags, npu.kernel.group_id(1))
    buffer.write(words, 0)
    with pytest.raises(Misuse, match="was it synced"):
        npu.run(instructions=buffer).start()


def test_a_length_in_words_is_not_bytes(npu: Npu) -> None:
    run = npu.run()
    run.set_arg(2, len(npu.package.instructions))
    with pytest.raises(Misuse, match="does it count words"):
        run.start()


def test_bytes_that_a_run_uses_are_not_synced(npu: Npu) -> None:
    source, target = npu.buffer(CONTENT), npu.buffer(2 * BYTES)
    run = npu.run(source, target)
    run.start()
    for buffer, direction in [
        (target, npu.from_device),
        (source, npu.to_device),
        (npu.instructions, npu.to_device),
    ]:
        with pytest.raises(Misuse, match="race"):
            buffer.sync(direction)
    target.sync(npu.to_device, BYTES, BYTES)  # nobody's
    run.wait()
    target.sync(npu.from_device)


def test_a_stale_argument(npu: Npu) -> None:
    run = npu.run(npu.buffer(CONTENT), npu.buffer(BYTES))
    with pytest.raises(Misuse, match="argument 3's buffer is gone"):
        run.start()


def test_a_part_keeps_its_buffer(npu: Npu) -> None:
    part = npu.xrt.bo(npu.buffer(CONTENT), BYTES, 0)
    target = npu.buffer(bytes(BYTES))
    run = npu.run(part, target)
    run.start()
    run.wait2()
    assert npu.seen(target) == CONTENT


def test_a_view_that_outlives_its_buffer(npu: Npu) -> None:
    buffer = npu.buffer(CONTENT)
    view = np.frombuffer(buffer.map(), np.uint8)
    del buffer
    assert set(view.tolist()) == {0xA5}


def test_an_argument_left_out(npu: Npu) -> None:
    target = npu.buffer(BYTES)
    run = npu.run()
    run.set_arg(4, target)
    with pytest.raises(Misuse, match="argument 3 is not set; argument 4 is"):
        run.start()


def test_an_odd_address(npu: Npu) -> None:
    root, target = npu.buffer(2 * BYTES), npu.buffer(BYTES)
    run = npu.run(npu.xrt.bo(root, BYTES, 2), target)
    with pytest.raises(Misuse):
        run.start()


def test_a_list_with_a_run_twice_or_of_another_context(npu: Npu) -> None:
    run = npu.run()
    many = npu.xrt.runlist(npu.context)
    many.add(run)
    with pytest.raises(Misuse, match="already"):
        many.add(run)
    other = npu.xrt.hw_context(npu.device, npu.uuid)
    with pytest.raises(Misuse, match="another context"):
        many.add(npu.xrt.run(npu.xrt.kernel(other, "MLIR_AIE")))
    with pytest.raises(Misuse, match="wait for the list"):
        run.wait()


def test_runs_of_a_list_do_not_share_what_one_writes(npu: Npu) -> None:
    first, second, third = (npu.buffer(bytes(BYTES)) for _ in range(3))
    many = npu.xrt.runlist(npu.context)
    for run in (runs := [npu.run(first, second), npu.run(second, third)]):
        many.add(run)
    with pytest.raises(Misuse, match="raced"):
        many.execute()
    npu.seen(second)  # nothing is in use any more
    runs[1].set_arg(3, first)  # to read the same is no race
    many.execute()
    many.wait()


def test_a_compiled_package_needs_an_npu(machine: fakexrt.Machine, tmp_path: Path) -> None:
    path = tmp_path / "compiled.xclbin"
    path.write_bytes(write(b"\xdd\0\0\0" * 64, IDENTITY, columns=NPU2.columns))
    device = fakexrt.device(0)
    uuid = device.register_xclbin(fakexrt.xclbin(str(path)))
    with pytest.raises(Misuse, match="only an NPU runs it"):
        fakexrt.hw_context(device, uuid)


def test_a_truncated_xclbin(machine: fakexrt.Machine, tmp_path: Path) -> None:
    path = loopback(tmp_path).xclbin
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RuntimeError, match="cut short"):
        fakexrt.xclbin(str(path))


def test_a_design_without_an_array(machine: fakexrt.Machine, tmp_path: Path) -> None:
    path = tmp_path / "design.xclbin"
    image = fakexrt.Simulated("npu_kernels.txn").image()
    path.write_bytes(write(image, UUID(int=5), columns=8))
    device = fakexrt.device(0)
    npu_uuid = device.register_xclbin(fakexrt.xclbin(str(path)))
    context = fakexrt.hw_context(device, npu_uuid)
    with pytest.raises(Misuse, match="no design"):
        context._loaded(0x901)
