"""What a plan comes to: which functions run where, and what a decoded token moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flm.devices.xrt.graph import OURS, read
from flm.devices.xrt.package import Package, Packages
from flm.devices.xrt.plan import Dispatch, HostPart, Plan, plan_of
from npu_kernels.manifest import evaluate


@dataclass(frozen=True, slots=True)
class Report:
    """Counts are of nodes, by function. Bytes are what kernels read from DRAM for one token."""

    on_npu: Mapping[str, int]
    on_cpu: Mapping[str, int]
    dispatches: int
    host_parts: int  # between dispatches: each costs a way there and back
    bytes_read: int  # before any context
    bytes_read_per_row: float  # more for each token of context

    def lines(self) -> list[str]:
        """To be shown."""
        return [
            f"decode on the NPU: {_listed(self.on_npu)}",
            f"decode on the CPU: {_listed(self.on_cpu) or 'nothing'}",
            "prefill: all on the CPU: no plan has its kernels yet",
            f"a token: {self.dispatches} dispatches, {self.host_parts} parts on the CPU, "
            f"{self.bytes_read / 1e6:,.1f} MB read by kernels, and "
            f"{self.bytes_read_per_row / 1e3:,.2f} KB for each token before it",
        ]


def report_of(path: Path, packages: Packages, *, capacity: int) -> Report:
    """Of a graph's file; `capacity`: rows that a lane may hold."""
    plan = plan_of(read(path, capacity))
    package = packages(path, plan.wanted)
    on_npu = Counter({each.node: each.function for each in plan.dispatches}.values())
    parts = [step for step in plan.steps if isinstance(step, HostPart)]
    on_cpu = Counter(node.op_type for part in parts for node in part.nodes if node.domain == OURS)
    first, last = (_bytes_read(plan, package, offset) for offset in (0, capacity - 1))
    return Report(
        dict(on_npu),
        dict(on_cpu),
        len(plan.dispatches),
        len(parts),
        first,
        (last - first) / max(1, capacity - 1),
    )


def _bytes_read(plan: Plan, package: Package, offset: int) -> int:
    return sum(_read_by(dispatch, package, offset) for dispatch in plan.dispatches)


def _read_by(dispatch: Dispatch, package: Package, offset: int) -> int:
    from npu_kernels.txn import NPU2, parse, traffic

    binding, known = dispatch.binding, {"offset": offset, "length": offset + 1}
    entry = package.kernel(binding.folder, binding.design, binding.parameters)
    values = {name: evaluate(formula, known) for name, formula in binding.values.items()}
    return traffic(parse(entry.words(**values)), NPU2).bytes_read


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
