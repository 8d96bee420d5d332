"""flm kernels"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flm import console
from flm.cli import options
from flm.devices.npu import NEVER_RAN
from flm.errors import BadKernelPackage, BadRequest, DeviceFailed
from flm.settings import NPU, NPU_SIM

if TYPE_CHECKING:
    from flm.devices.xrt.selftest import Outcome
    from flm.devices.xrt.toolchains import Toolchain
    from flm.settings import Settings

app = typer.Typer(
    help="Kernels for the NPU: which there are, what is built of them, whether they compute.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

Simulate = Annotated[
    bool, typer.Option("--simulate", help="for the simulator: needs no mlir-aie, runs on no NPU")
]
Where = Annotated[
    str,
    typer.Argument(metavar="MODEL|FOLDER", help="a model whose kernels are built, or a package"),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="npu|npu-sim", help="an NPU (default), or its simulator"),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="write it down: .json, or Markdown to post"),
]


@app.command("list")
def list_(
    context: typer.Context,
    json_: options.Json = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Show the kernels there are, and the packages that are built."""
    from flm.devices.xrt.designs import shaped

    settings = options.settings_of(context)
    designs = [
        {
            "design": each.wanted.design,
            "functions": list(each.functions),
            "model": each.model,
            "parameters": dict(each.wanted.parameters),
        }
        for each in shaped()
    ]
    packages = [_said(folder) for folder in _packages(settings)]
    if json_:
        _write_json({"designs": designs, "packages": packages})
        return
    for design in {each["design"]: each for each in designs}.values():
        console.write(f"{design['design']:16} {', '.join(design['functions'])}\n")
    for package in packages:
        console.write(f"\n{package['folder']}: {package['kind']}, by {package['toolchain']}\n")
        for kernel in package["kernels"]:
            console.write(f"  {kernel}\n")
    if not packages:
        console.write("\nNo package is built: flm kernels build MODEL\n")


@app.command("check")
def check(
    context: typer.Context,
    json_: options.Json = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Hold every design, at real shapes, to what the array has and to what hung elsewhere."""
    from flm.devices.xrt.designs import faults, shaped

    options.settings_of(context)
    found = {f"{each.model}: {each.wanted}": list(faults(each.wanted)) for each in shaped()}
    if json_:
        _write_json(found)
    else:
        width = max(map(len, found))
        for name, said in found.items():
            console.write(f"{name:{width}}  {'faulty' if said else 'fine'}\n")
            for each in said:
                console.write(f"  {each}\n")
    if any(found.values()):
        raise typer.Exit(1)


@app.command("build")
def build(
    context: typer.Context,
    model: options.Model,
    simulate: Simulate = False,
    ctx_len: options.CtxLen = None,
    quiet: options.Quiet = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Build a model's kernels into its folder, with mlir-aie 1.4.2 and Peano."""
    from flm.cli.planned import npu_graph
    from flm.devices.xrt.build import build
    from flm.devices.xrt.package import KERNELS
    from flm.devices.xrt.phases import phases_of
    from flm.devices.xrt.toolchains import MlirAie, Simulator

    settings = options.settings_of(context)
    toolchain: Toolchain = Simulator()
    if not simulate:
        toolchain = MlirAie()
        toolchain.needed()
    graph, capacity = npu_graph(model, settings)
    for phase in filter(None, phases_of(graph, capacity)):
        wanted = phase.plan.wanted
        console.say(f"Building {len(wanted)} kernels for {phase.name}")
        console.say(f"They are in {build(wanted, graph.parent / KERNELS, toolchain)}")
    console.say(NEVER_RAN)
    device = NPU_SIM if simulate else NPU
    console.say(f"Next, whether they compute: flm kernels selftest {model} --device {device}")


@app.command("selftest")
def selftest(
    context: typer.Context,
    where: Where,
    device: Device = None,
    report: Report = None,
    json_: options.Json = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Run every kernel of a package on the device, against vectors that the reference computes."""
    from flm.devices.xrt.load import load
    from flm.devices.xrt.named import toolchain_of
    from flm.devices.xrt.selftest import self_test

    settings = options.settings_of(context)
    if settings.device == "auto":
        settings = replace(settings, device=NPU)
    if settings.device not in (NPU, NPU_SIM):
        raise BadRequest("Kernels run on an NPU.", fix=f"--device {NPU}, or --device {NPU_SIM}")
    toolchain = toolchain_of(settings.device)
    outcomes: list[Outcome] = []
    folders = _of(where, settings, toolchain.kind)
    for folder in folders:
        for outcome in self_test(load(folder, toolchain), settings.device):
            outcomes.append(outcome)
            if not json_:
                console.write(f"{_line(outcome)}\n")
    said = _report(settings.device, folders, outcomes)
    if json_:
        _write_json(said)
    if report is not None:
        text = json.dumps(said, indent=2) if report.suffix == ".json" else _markdown(said)
        report.write_text(text + "\n", encoding="utf-8")
        console.say(f"The report is in {report}")
    failed = [outcome.kernel for outcome in outcomes if not outcome.fine]
    if failed:
        raise DeviceFailed(
            f"{len(failed)} of {len(outcomes)} kernels do not compute what they should: "
            f"{', '.join(failed)}.",
            fix="flm kernels selftest --report FILE writes down what to post",
        )


def _packages(settings: Settings) -> list[Path]:
    from flm.devices.xrt.package import KERNELS, MANIFEST

    models = settings.model_path / "models"
    return sorted(file.parent for file in models.glob(f"*/*/{KERNELS}/*/{MANIFEST}"))


def _of(where: str, settings: Settings, kind: str) -> list[Path]:
    """The packages of one kind that are meant."""
    from flm.devices.xrt.package import COMPILED, KERNELS, MANIFEST
    from flm.hub.shelf import Shelf

    if (Path(where) / MANIFEST).exists():
        return [Path(where)]
    folder = Shelf(settings.model_path).folder(where)
    found = sorted(file.parent for file in folder.glob(f"*/{KERNELS}/{kind}-*/{MANIFEST}"))
    if not found:
        simulate = "" if kind == COMPILED else " --simulate"
        raise BadKernelPackage(
            f"{where} has no package that is {kind}.", fix=f"flm kernels build {where}{simulate}"
        )
    return found


def _said(folder: Path) -> dict[str, Any]:
    from flm.devices.xrt.package import MANIFEST, Wanted

    said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    kernels = (Wanted(k["folder"], k["design"], k["parameters"]) for k in said["kernels"])
    return {
        "folder": str(folder),
        "kind": said["kind"],
        "toolchain": ", ".join(f"{name} {pin}" for name, pin in said["toolchain"].items()),
        "kernels": [str(kernel) for kernel in kernels],
    }


def _line(outcome: Outcome) -> str:
    largest = max(outcome.errors.values(), default=0.0)
    time = "" if outcome.run_us is None else f", {outcome.run_us:,.0f} us"
    return f"{outcome.kernel}: {outcome.said or f'fine, {largest:.1e} off at the most'}{time}"


def _report(device: str, folders: list[Path], outcomes: list[Outcome]) -> dict[str, Any]:
    from flm import __version__
    from flm.cli.validate import report
    from flm.devices.probe import probe

    return {
        "flm": __version__,
        "device": device,
        "python": platform.python_version(),
        "machine": report(probe()),
        "packages": [{k: v for k, v in _said(f).items() if k != "folder"} for f in folders],
        "kernels": [asdict(outcome) for outcome in outcomes],
    }


def _markdown(said: dict[str, Any]) -> str:
    machine = said["machine"]
    npus = [f"{each['name']} ({each['pci']})" for each in machine["devices"]] or ["no NPU"]
    lines = [
        f"# Kernels of flm {said['flm']} on {said['device']}",
        "",
        f"{', '.join(npus)}, {machine['cpu']}, kernel {machine['kernel']}",
        "",
        "| kernel | result | largest error | us a run | GB/s |",
        "|---|---|---|---|---|",
    ]
    for each in said["kernels"]:
        error = max(each["errors"].values(), default=None)
        speed = each["moved_bytes"] / each["run_us"] / 1e3 if each["run_us"] else None
        cells = (
            each["kernel"],
            each["said"] or "fine",
            "" if error is None else f"{error:.1e}",
            f"{each['run_us']:,.0f}" if each["run_us"] else "",
            "" if speed is None else f"{speed:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _write_json(said: Any) -> None:
    console.write(json.dumps(said, indent=4) + "\n")
