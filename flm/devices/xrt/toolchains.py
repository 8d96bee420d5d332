"""What makes a package of designs: iron_sim here, or mlir-aie and Peano where they are installed.

The compiled way is written from the sources of mlir-aie 1.4.2 and has never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import numpy as np

from flm.devices import npu
from flm.devices.npu import FAMILY
from flm.devices.xrt.package import COMPILED, SIMULATED, Words
from flm.errors import DeviceUnavailable

if TYPE_CHECKING:
    from npu_kernels.manifest import Design

COLUMNS = npu.COLUMNS[FAMILY]
MLIR_AIE, PEANO = "1.4.2", "21.0.0"
KERNEL_ID = 0x901  # of the first kernel; the others count on
INSTANCE = "K"  # short: with its kernel's name it has 63 letters
INSTALL = (
    "install them beside flm: pip install mlir_aie==1.4.2 llvm-aie -f "
    "https://github.com/Xilinx/mlir-aie/releases/expanded_assets/v1.4.2; "
    "for the simulator, which needs none of it: flm kernels build MODEL --simulate"
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A design under its kernel's name, to be built at some values; the first is the template."""

    name: str
    design: Design
    parameters: Mapping[str, int]
    samples: tuple[Mapping[str, int], ...]


@dataclass(frozen=True, slots=True)
class Made:
    """An xclbin of all kernels, and of each kernel its stream at each of its samples."""

    xclbin: bytes
    streams: tuple[tuple[Words, ...], ...]


class Toolchain(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def pins(self) -> Mapping[str, str]:
        """What a package must have been made by to be believed."""
        ...

    def make(self, kernels: Sequence[Sampled], identity: UUID, work: Path) -> Made:
        """`work`: an empty folder for what comes up on the way."""
        ...


class Simulator:
    """Images that name designs, streams by iron_sim. Its own sources are its version."""

    kind = SIMULATED

    @property
    def pins(self) -> Mapping[str, str]:
        from flm.devices.xrt.sources import digest

        return {"iron_sim": digest("iron_sim", "txn")[:16]}

    def make(self, kernels: Sequence[Sampled], identity: UUID, work: Path) -> Made:
        from npu_kernels.fakexrt import Simulated
        from npu_kernels.xclbin import write_all

        images = {
            k.name: Simulated(k.design.module, {**k.parameters, **k.samples[0]}).image()
            for k in kernels
        }
        container = write_all(images, identity, columns=COLUMNS)
        return Made(container, tuple(_simulated_streams(kernel) for kernel in kernels))


def _simulated_streams(kernel: Sampled) -> tuple[Words, ...]:
    from npu_kernels.fakexrt.configuration import record_of
    from npu_kernels.iron_sim import DesignFault, check
    from npu_kernels.iron_sim.stream import stream

    module, streams = import_module(kernel.design.module), []
    for sample in kernel.samples:
        try:
            record = record_of(module, {**kernel.parameters, **sample})
            check(record)
            streams.append(stream(record))
        except DesignFault as fault:
            fault.add_note(f"in {kernel.name} at {dict(sample)}")
            raise
    return tuple(streams)


class MlirAie:
    """aiecc and Peano. A kernel's xclbin is made on top of the one before it (--xclbin-input), so
    that the last one has them all; a sample is compiled whole, for its instructions alone.
    """

    kind = COMPILED

    @property
    def pins(self) -> Mapping[str, str]:
        return {"mlir_aie": MLIR_AIE, "llvm-aie": PEANO}

    def make(self, kernels: Sequence[Sampled], identity: UUID, work: Path) -> Made:
        self.needed()
        container: Path | None = None
        streams = []
        for number, kernel in enumerate(kernels):
            flags = [
                f"--xclbin-kernel-name={kernel.name}",
                f"--xclbin-instance-name={INSTANCE}{number}",
                f"--xclbin-kernel-id={KERNEL_ID + number:#x}",
            ]
            if container is not None:
                flags.append(f"--xclbin-input={container}")
            container, template = _compiled(kernel, 0, flags, work)
            others = (_compiled(kernel, n, [], work)[1] for n in range(1, len(kernel.samples)))
            streams.append((template, *others))
        assert container is not None, "a package has kernels"
        return Made(container.read_bytes(), tuple(streams))

    def needed(self) -> None:
        """Raises DeviceUnavailable where it is not installed, or another version is."""
        from importlib.metadata import PackageNotFoundError, version

        for name, wanted in self.pins.items():
            try:
                found = version(name)
            except PackageNotFoundError:
                what = f"Kernels are compiled by {name} {wanted}, which is not installed."
                raise DeviceUnavailable(what, fix=INSTALL) from None
            if not found.startswith(wanted):
                what = f"Kernels are compiled by {name} {wanted}; here is {found}."
                raise DeviceUnavailable(what, fix=INSTALL)


def _compiled(kernel: Sampled, sample: int, flags: Sequence[str], work: Path) -> tuple[Path, Words]:
    """In a folder of its own: aiecc takes up objects that it finds."""
    from aie import iron
    from aie.iron.device import from_name
    from aie.utils.compile.jit.compilabledesign import CompilableDesign

    module = import_module(kernel.design.module)
    given = {**kernel.parameters, **kernel.samples[sample]}

    def generated() -> Any:
        return module.build(**given).resolve_program()

    folder = work / f"{kernel.name}.{sample}"
    folder.mkdir()
    iron.set_current_device(from_name(FAMILY, n_cols=None))
    design = CompilableDesign(generated, use_cache=False, aiecc_flags=list(flags))
    container, instructions = design.compile(folder / "design.xclbin", folder / "insts.bin")
    return container, np.fromfile(instructions, np.uint32)
