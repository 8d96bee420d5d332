"""Runs IRON designs where mlir-aie is absent: records them, checks every budget, executes them.

with installed():  # `import aie` finds stand-ins
    record = record_of(design.build(...))
check(record)
counters = simulate(record, buffers, kernels)
"""

from npu_kernels.iron_sim.aie.program import record_of
from npu_kernels.iron_sim.check import check, findings
from npu_kernels.iron_sim.faults import Deadlock, DesignFault
from npu_kernels.iron_sim.install import installed
from npu_kernels.iron_sim.simulate import Array, Counters, simulate

__all__ = [
    "Array",
    "Counters",
    "Deadlock",
    "DesignFault",
    "check",
    "findings",
    "installed",
    "record_of",
    "simulate",
]
