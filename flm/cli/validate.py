"""flm validate"""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from flm import console
from flm.cli import options
from flm.core.sizes import counted
from flm.devices.npu import NEVER_RAN, Npu
from flm.devices.probe import Machine, probe
from flm.devices.readiness import Check, checks
from flm.devices.xrt.opened import Opened, open_npu
from flm.errors import DeviceUnavailable
from flm.settings import Settings

PlanOf = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="say what of a model an NPU would run"),
]


def command(
    context: typer.Context,
    model: PlanOf = None,
    ctx_len: options.CtxLen = None,
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
    if model is not None:
        _print_plan(model, settings)
        return
    machine = probe()
    opened = open_npu() if any(npu.opened for npu in machine.npus) else None
    trouble = _cpu_trouble()
    npu_ready = machine.npu_ready and opened is not None and opened.fine
    ready = trouble is None if settings.device == "cpu" else npu_ready
    if json_:
        said = report(machine, opened) | {"cpu_ready": trouble is None, "ready": ready}
        console.write(json.dumps(said, indent=4, sort_keys=True) + "\n")
    else:
        _show(machine, opened, trouble, alone=settings.device == "cpu")
    raise typer.Exit(0 if ready else 1)


def _show(
    machine: Machine, opened: Opened | None, trouble: DeviceUnavailable | None, *, alone: bool
) -> None:
    """What models would run on comes first: the CPU where there is no NPU at all. `alone`: the CPU
    is what was asked about, so what an NPU lacks is nobody's concern.
    """
    has_npu = bool(machine.npus or machine.npus_on_bus)
    if alone or not has_npu:
        _print_cpu(machine, trouble)
    if alone:
        if has_npu:
            console.say("This machine has an NPU: flm validate says what stands between the two.")
        return
    for check in checks(machine, opened):
        _print(check)
    if has_npu:
        _print_cpu(machine, trouble)


def _print_plan(model: str, settings: Settings) -> None:
    """Which functions run where, in each phase, and what that moves. Nothing of it is run."""
    from flm.cli.planned import npu_graph
    from flm.devices.xrt.build import beside
    from flm.devices.xrt.report import lines_of, reports_of
    from flm.devices.xrt.toolchains import Simulator

    graph, capacity = npu_graph(model, settings)
    for line in lines_of(reports_of(graph, beside(Simulator()), capacity=capacity)):
        console.say(line)
    console.say(NEVER_RAN)


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


def report(machine: Machine, opened: Opened | None = None) -> dict[str, Any]:
    """FastFlowLM's keys about the NPU, then ours."""
    versions = [npu.drm for npu in machine.npus if npu.drm]
    drm = {"drm_version": ".".join(map(str, versions[0][:2]))} if versions else {}
    limit = machine.memlock_mb
    return drm | {
        "object": "npu_stack_validation",
        "platform": "linux",
        "kernel": machine.kernel,
        "kernel_ok": machine.kernel_ok,
        "amd_device_found": any(npu.opened for npu in machine.npus),
        "all_fw_ok": all(npu.firmware_ok for npu in machine.npus),
        "enough_cols": all(npu.columns_ok for npu in machine.npus),
        "memlock_limit": "infinity" if limit is None else f"{limit} MB",
        "memlock_ok": machine.memlock_ok,
        "devices": [_device(npu) for npu in machine.npus if npu.opened],
        "npus_on_bus": list(machine.npus_on_bus),
        "xrt_opened": opened is not None and opened.fine,
        "checks": [asdict(check) for check in checks(machine, opened)],
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
        "fw_ok": npu.firmware_ok,
        "name": npu.name,
        "pci": f"1022:{npu.device:04x}:{npu.revision:02x}",
        "power_mode": npu.power_mode,
    }


def _print(check: Check) -> None:
    colour = console.GREEN if check.fine else console.YELLOW
    console.say(check.said, header="Linux", colour=colour)
    if check.fix:
        console.write(f"         {check.fix}\n")


def _print_cpu(machine: Machine, trouble: DeviceUnavailable | None) -> None:
    flags = " ".join(machine.cpu_flags) or "no vector extensions that we use"
    memory = machine.memory_bytes / 2**30
    console.say(
        f"CPU: {machine.cpu}, {counted(machine.cores, 'core')}, {memory:.1f} GiB memory ({flags})"
    )
    if trouble is None:
        console.say("CPU self-test passed.", colour=console.GREEN)
        console.say(_side_by_side())
        console.say(f"Models run on the CPU. {NEVER_RAN}")
    else:
        console.fail(trouble.message, fix=trouble.fix)
