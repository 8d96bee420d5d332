"""flm validate"""

import json
from typing import Any

import typer

from flm import console
from flm.cli import options
from flm.devices.probe import COLUMNS_MIN, FIRMWARE_MIN, KERNEL_MIN, Machine, Npu, probe
from flm.errors import DeviceUnavailable

NEVER_RAN = "The NPU path of this version has never run on silicon."


def command(
    context: typer.Context,
    json_: options.Json = False,
    device: options.Device = None,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Check what models can run on here.

    Ends with 0 if the NPU is ready; with --device cpu (or FLM_DEVICE=cpu), if the CPU is.
    """
    settings = options.settings_of(context)
    machine = probe()
    trouble = _cpu_trouble()
    ready = trouble is None if settings.device == "cpu" else machine.npu_ready
    if json_:
        said = report(machine) | {"cpu_ready": trouble is None, "ready": ready}
        console.write(json.dumps(said, indent=4, sort_keys=True) + "\n")
    else:
        _print_npu(machine)
        _print_cpu(machine, trouble)
    raise typer.Exit(0 if ready else 1)


def _cpu_trouble() -> DeviceUnavailable | None:
    from flm.devices.selftest import REINSTALL, self_test

    try:
        self_test()
    except DeviceUnavailable as error:
        return error
    except ImportError as error:
        return DeviceUnavailable(f"onnxruntime cannot be loaded: {error}", fix=REINSTALL)
    return None


def _side_by_side() -> str:
    from flm.devices.selftest import lone_row_alike

    if lone_row_alike():
        return "Replies decoded side by side are bit-equal to replies decoded alone."
    return "With 4-bit weights, a reply decoded beside others rounds differently from one alone."


def report(machine: Machine) -> dict[str, Any]:
    """FastFlowLM's keys about the NPU, then ours about the CPU."""
    versions = [npu.drm for npu in machine.npus if npu.drm]
    drm = {"drm_version": ".".join(map(str, versions[0][:2]))} if versions else {}
    limit = machine.memlock_mb
    return drm | {
        "object": "npu_stack_validation",
        "platform": "linux",
        "kernel": machine.kernel,
        "kernel_ok": machine.kernel_ok,
        "amd_device_found": any(npu.opened for npu in machine.npus),
        "all_fw_ok": all(npu.firmware >= FIRMWARE_MIN for npu in machine.npus),
        "enough_cols": all(npu.columns >= COLUMNS_MIN for npu in machine.npus),
        "memlock_limit": "infinity" if limit is None else f"{limit} MB",
        "memlock_ok": machine.memlock_ok,
        "devices": [_device(npu) for npu in machine.npus if npu.opened],
        "cpu": machine.cpu,
        "cpu_flags": list(machine.cpu_flags),
        "cpu_cores": machine.cores,
        "memory_mb": machine.memory_bytes // 2**20,
        "npu_note": NEVER_RAN,
    }


def _device(npu: Npu) -> dict[str, Any]:
    major, minor, patch, build = (*npu.firmware, 0, 0, 0, 0)[:4]
    return {
        "device": npu.node,
        "cols": npu.columns,
        "fw_major": major,
        "fw_minor": minor,
        "fw_patch": patch,
        "fw_build": build,
        "fw_ok": npu.firmware >= FIRMWARE_MIN,
    }


def _print_npu(machine: Machine) -> None:
    wanted = ".".join(map(str, KERNEL_MIN))
    _line(f"Kernel: {machine.kernel}", machine.kernel_ok, f"the NPU needs {wanted} or newer")
    if not machine.npus:
        console.fail("No NPU device found.")
    for npu in machine.npus:
        if not npu.opened:
            console.fail(
                f"{npu.node} may not be opened.",
                fix="sudo usermod -aG render $USER, then log in again",
            )
            continue
        firmware = ".".join(map(str, npu.firmware)) or "unknown"
        enough = npu.columns >= COLUMNS_MIN
        _line(f"NPU: {npu.node} with {npu.columns} columns", enough, f"needs {COLUMNS_MIN}")
        _line(f"NPU FW Version: {firmware}", npu.firmware >= FIRMWARE_MIN, "needs 1.1 or newer")
        _line(f"amdxdna version: {'.'.join(map(str, npu.drm[:2])) or 'unknown'}", bool(npu.drm), "")
    limit = "infinity" if machine.memlock_mb is None else f"{machine.memlock_mb} MB"
    _line(f"Memlock Limit: {limit}", machine.memlock_ok, "the NPU needs it unlimited")


def _print_cpu(machine: Machine, trouble: DeviceUnavailable | None) -> None:
    flags = " ".join(machine.cpu_flags) or "no vector extensions that we use"
    memory = machine.memory_bytes / 2**30
    console.say(f"CPU: {machine.cpu}, {machine.cores} cores, {memory:.1f} GiB memory ({flags})")
    if trouble is None:
        console.say("CPU self-test passed.", colour=console.GREEN)
        console.say(_side_by_side())
        console.say(f"Models run on the CPU. {NEVER_RAN}")
    else:
        console.fail(trouble.message, fix=trouble.fix)


def _line(text: str, fine: bool, want: str) -> None:
    hint = f"  ({want})" if want and not fine else ""
    console.say(text + hint, header="Linux", colour=console.GREEN if fine else console.YELLOW)
