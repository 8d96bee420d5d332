"""The module tree `aie`, where mlir-aie is absent. A real one is never shadowed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from npu_kernels.iron_sim.aie import dataflow, device, program, runtime, taps, tiler, types, worker
from npu_kernels.iron_sim.faults import not_simulated
from npu_kernels.iron_sim.loops import range_
from npu_kernels.iron_sim.record import Record

FIFOS = {"ObjectFifo": dataflow.ObjectFifo, "ObjectFifoHandle": dataflow.ObjectFifoHandle}
KERNELS = {"Kernel": worker.Kernel, "ExternalFunction": worker.ExternalFunction}
BUFFERS = {"Buffer": worker.Buffer}
WORKERS = {"Worker": worker.Worker, "WorkerRuntimeBarrier": worker.WorkerRuntimeBarrier}
RUNTIME = {"Runtime": runtime.Runtime, "TaskGroup": runtime.TaskGroup}
PROGRAM = {"Program": program.Program}
DTYPES = {"str_to_dtype": types.str_to_dtype, "dtype_to_str": types.dtype_to_str}
PLACES = {
    "Tile": device.Tile,
    "AnyShimTile": device.AnyShimTile,
    "AnyMemTile": device.AnyMemTile,
    "AnyComputeTile": device.AnyComputeTile,
}
CURRENT = {
    "get_current_device": device.get_current_device,
    "set_current_device": device.set_current_device,
}
TAPS = {
    "TensorAccessPattern": taps.TensorAccessPattern,
    "TensorAccessSequence": taps.TensorAccessSequence,
    "TensorTiler2D": tiler.TensorTiler2D,
}
JIT = {
    "jit": program.jit,
    **dict.fromkeys(("In", "Out", "InOut", "CompileTime"), program.Marker),
}

TREE: dict[str, dict[str, Any]] = {
    "aie": {},
    "aie.iron": {
        **FIFOS,
        **KERNELS,
        **BUFFERS,
        "GlobalBuffer": worker.Buffer,
        **WORKERS,
        **RUNTIME,
        **PROGRAM,
        **DTYPES,
        **CURRENT,
        **JIT,
    },
    "aie.iron.buffer": BUFFERS,
    "aie.iron.controlflow": {"range_": range_},
    "aie.iron.dataflow": FIFOS,
    "aie.iron.dataflow.objectfifo": FIFOS,
    "aie.iron.device": {**device.CLASSES, **PLACES, "from_name": device.from_name},
    "aie.iron.dtype": DTYPES,
    "aie.iron.kernel": KERNELS,
    "aie.iron.placers": {"SequentialPlacer": program.SequentialPlacer},
    "aie.iron.program": PROGRAM,
    "aie.iron.runtime": RUNTIME,
    "aie.iron.runtime.taskgroup": {"TaskGroup": runtime.TaskGroup},
    "aie.iron.worker": WORKERS,
    "aie.helpers": {},
    "aie.helpers.taplib": TAPS,
    "aie.utils": {},
}


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name, "a stand-in by npu_kernels.iron_sim")
    module.__dict__.update(contents)
    module.__path__ = []

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise not_simulated(f"{name}.{attribute}")

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


class _Missing(MetaPathFinder):
    """Names the module of aie that a design wants and we do not have."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.startswith("aie."):
            raise not_simulated(f"import {name}")
        return None


@contextmanager
def installed() -> Iterator[list[Record]]:
    """`import aie` finds the stand-ins; gives the programs resolved so far, oldest first."""
    if "aie" in sys.modules or find_spec("aie") is not None:
        raise RuntimeError("mlir-aie is here; iron_sim stands in only where it is absent")
    modules = {name: _module(name, contents) for name, contents in TREE.items()}
    for name, module in modules.items():
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(modules[parent], leaf, module)
    finder = _Missing()
    sys.modules.update(modules)
    sys.meta_path.insert(0, finder)
    resolved: list[Record] = []
    program.resolved = resolved
    device.forget_current_device()
    try:
        yield resolved
    finally:
        sys.meta_path.remove(finder)
        for name in modules:
            del sys.modules[name]
