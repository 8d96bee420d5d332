"""What an image configures. A simulated package's image is JSON that names a design:

{"simulated": {"design": "npu_kernels.fakexrt.loopback", "parameters": {"words": 64}}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from npu_kernels.fakexrt.array import Array
from npu_kernels.fakexrt.faults import Misuse


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
    """The design's module makes its own array."""
    module = import_module(simulated.design)
    if not hasattr(module, "array"):
        raise Misuse(f"{simulated.design} has no array(); give Machine(configure=...) one for it")
    found: Array = module.array(**simulated.parameters)
    return found
