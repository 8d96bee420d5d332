"""What an image configures. A simulated package's image is JSON that names a design:

{"simulated": {"design": "npu_kernels.swiglu.design", "parameters": {"N": 1024}}}

The design's module has build(**parameters), an IRON program for iron_sim whose kernels are compiled
for the host, or array(**parameters), which makes an Array itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from npu_kernels.fakexrt.array import Array
from npu_kernels.fakexrt.faults import Misuse

if TYPE_CHECKING:
    from npu_kernels.iron_sim.record import Kernel, Record


@dataclass(frozen=True, slots=True)
class Simulated:
    design: str
    parameters: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, image: bytes) -> Simulated:
        try:
            said = json.loads(image)["simulated"]
            return cls(said["design"], dict(said["parameters"]))
        except (ValueError, KeyError, TypeError):
            reason = "this image is compiled: only an NPU runs it; fakexrt runs simulated packages"
            raise Misuse(reason) from None

    def image(self) -> bytes:
        said = {"design": self.design, "parameters": dict(self.parameters)}
        return json.dumps({"simulated": said}, sort_keys=True).encode()


Configure = Callable[[Simulated], Array]


def configure(simulated: Simulated) -> Array:
    module = import_module(simulated.design)
    if hasattr(module, "build"):
        from npu_kernels.iron_sim.shims import ShimArray

        return ShimArray(*_built(simulated.design, tuple(sorted(simulated.parameters.items()))))
    if hasattr(module, "array"):
        made: Array = module.array(**simulated.parameters)
        return made
    raise Misuse(f"{simulated.design} has neither build() nor array(): it is no design")


@lru_cache(maxsize=256)
def _built(design: str, parameters: tuple[tuple[str, int], ...]) -> tuple[Record, dict[str, Any]]:
    """The array is configured often, of a few designs."""
    record = record_of(import_module(design), dict(parameters))
    return record, host_kernels(record)


def record_of(module: ModuleType, parameters: Mapping[str, int]) -> Record:
    from npu_kernels import iron_sim

    with iron_sim.installed():
        return iron_sim.record_of(module.build(**parameters))


def host_kernels(record: Record) -> dict[str, Any]:
    """What the workers call, compiled for the host, by symbol."""
    from npu_kernels.aie_host import compile_kernel
    from npu_kernels.iron_sim.record import Kernel, flat

    leaves = (leaf for worker in record.workers for leaf in flat(worker.arguments))
    kernels = {leaf.symbol: leaf for leaf in leaves if isinstance(leaf, Kernel)}
    return {
        symbol: compile_kernel(_source(kernel), defines=_defines(kernel))
        for symbol, kernel in kernels.items()
    }


def _source(kernel: Kernel) -> Path:
    if kernel.source is None:
        raise Misuse(f"kernel {kernel.symbol} names no source to compile for the host")
    return Path(kernel.source)


def _defines(kernel: Kernel) -> dict[str, int | str]:
    defines: dict[str, int | str] = {}
    for flag in kernel.flags:
        name, _, value = flag.removeprefix("-D").partition("=")
        if flag.startswith("-D"):
            defines[name] = value or 1
    return defines
