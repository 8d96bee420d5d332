"""A kernel package: what configures the NPU for a phase, and a stream of instructions a kernel.

A folder: manifest.json, design.xclbin, NAME.insts.bin for each kernel. One of kind "compiled" runs
on an NPU; in one of kind "simulated" the xclbin's images name designs, and fakexrt runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flm.errors import BadKernelPackage
from npu_kernels.bf16 import value_of

if TYPE_CHECKING:
    from npu_kernels.txn import Site

SCHEMA = 1
KERNELS = "kernels"  # a model's folder of packages
MANIFEST, XCLBIN = "manifest.json", "design.xclbin"
COMPILED, SIMULATED = "compiled", "simulated"
FLOATS = ("EPSILON", "SCALE")  # parameters that are float32s, by their bits
SCALARS = 3  # opcode, instructions, their bytes: a kernel's first buffer is its argument 3

Words = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A design of a folder of npu_kernels/ at some parameters."""

    folder: str
    design: str
    parameters: Mapping[str, int]

    @property
    def name(self) -> str:
        """Of its kernel in the xclbin, which has room for 63 letters with ':' and an instance's."""
        numbers = "_".join(str(value) for _, value in sorted(self.parameters.items()))
        return f"{self.design}_{numbers}" if numbers else self.design

    def __str__(self) -> str:
        shown = {n: f"{value_of(v):g}" if n in FLOATS else v for n, v in self.parameters.items()}
        said = ", ".join(f"{name} {value}" for name, value in sorted(shown.items()))
        return f"{self.design} with {said}" if said else self.design


@dataclass(frozen=True, slots=True)
class Argument:
    """A host buffer. `direction`: in, out, inout, constant, memory; `layout`: of its bytes."""

    name: str
    dtype: str
    nbytes: int
    direction: str
    layout: str = "plain"


@dataclass(frozen=True, slots=True)
class Value:
    """What changes from pass to pass, its bounds, and the words that say it. `kind`: as its
    manifest has it.
    """

    name: str
    kind: str
    least: int
    most: int
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """One design at one set of parameters. `name`: of its kernel in the xclbin."""

    folder: str
    design: str
    parameters: Mapping[str, int]
    name: str
    instructions: Words  # not to be written
    arguments: tuple[Argument, ...]
    values: tuple[Value, ...] = ()

    def words(self, **values: int) -> Words:
        """A copy of the instructions at these values, all of them named."""
        assert set(values) == {value.name for value in self.values}, (self.name, values)
        words = self.instructions.copy()
        for value in self.values:
            assert value.least <= values[value.name] <= value.most, (self.name, value, values)
            for site in value.sites:
                words[site.index] = site.word(values[value.name])
        return words


@dataclass(frozen=True, slots=True)
class Package:
    folder: Path
    kind: str
    kernels: tuple[KernelEntry, ...]

    @property
    def xclbin(self) -> Path:
        return self.folder / XCLBIN

    def kernel(self, folder: str, design: str, parameters: Mapping[str, int]) -> KernelEntry:
        wanted = Wanted(folder, design, parameters)
        for entry in self.kernels:
            if (entry.folder, entry.design) == (folder, design) and (
                dict(entry.parameters) == dict(parameters)
            ):
                return entry
        have = [
            str(Wanted(entry.folder, entry.design, entry.parameters))
            for entry in self.kernels
            if entry.folder == folder
        ]
        others = "; ".join(have) or f"nothing of {folder}"
        raise BadKernelPackage(f"{self.folder} has no {wanted}; it has {others}.")


# Where a model's are: its graph, and the kernels it needs.
Packages = Callable[[Path, Sequence[Wanted]], Package]
