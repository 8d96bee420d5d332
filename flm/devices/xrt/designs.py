"""Every design there is, at the shapes that manifests name, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from flm.devices.xrt.package import Wanted

# Where a manifest's shapes do not say: float32 bits of 1e-5 and 1/8, and a lane's tokens.
USUAL: Mapping[str, int] = {
    "EPSILON": 0x3727C5AC,
    "SCALE": 0x3E000000,
    "C": 4096,
    "HEADS": 1,
    "WINDOW": 0,
}


@dataclass(frozen=True, slots=True)
class Shaped:
    """A design as a model asks for it. `functions`: of domain flm, what its folder computes."""

    model: str
    functions: tuple[str, ...]
    wanted: Wanted


def shaped() -> Iterator[Shaped]:
    import npu_kernels
    from npu_kernels.manifest import manifest

    for file in sorted(Path(npu_kernels.__file__).parent.glob("*/manifest.toml")):
        folder = manifest(file.parent)
        for design in folder.designs:
            for model, shape in folder.shapes.items():
                known = {**USUAL, **shape}
                parameters = {name: known[name] for name in design.parameters}
                wanted = Wanted(file.parent.name, design.name, parameters)
                yield Shaped(model, folder.functions, wanted)


def faults(wanted: Wanted) -> tuple[str, ...]:
    """Budgets of the array, rules of the stream, what hung on somebody's NPU: by their names. With
    all values at their least, and at their most.
    """
    from flm.devices.xrt.build import design_of
    from npu_kernels.fakexrt.configuration import record_of
    from npu_kernels.iron_sim import DesignFault, findings
    from npu_kernels.iron_sim.stream import operations
    from npu_kernels.txn import NPU2
    from npu_kernels.txn import findings as stream_findings

    design, found = design_of(wanted), []
    bounds = {value.name: value.bounds(wanted.parameters) for value in design.values}
    for end in (0, 1):
        values = {name: both[end] for name, both in bounds.items()}
        try:
            record = record_of(import_module(design.module), {**wanted.parameters, **values})
            sizes = [argument.nbytes for argument in record.arguments]
            found += [f"{each.rule}: {each.where}: {each.what}" for each in findings(record)]
            found += map(str, stream_findings(operations(record), NPU2, sizes))
        except DesignFault as fault:
            found.append(str(fault))
    return tuple(dict.fromkeys(found))
