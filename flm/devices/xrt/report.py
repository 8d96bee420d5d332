"""What a model's plans come to: which functions run where, and what a token or a chunk moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flm.devices.xrt.graph import OURS
from flm.devices.xrt.package import Package, Packages
from flm.devices.xrt.phases import Phase, phases_of
from flm.devices.xrt.plan import Dispatch, HostPart, Plan
from npu_kernels.manifest import evaluate


@dataclass(frozen=True, slots=True)
class Report:
    """Of one phase. Counts are of nodes, by function. Bytes are what kernels read from DRAM for as
    many tokens as its plan takes at once.
    """

    phase: str
    tokens: int
    stateful: bool
    on_npu: Mapping[str, int]
    on_cpu: Mapping[str, int]
    dispatches: int
    host_parts: int  # between dispatches: each costs a way there and back
    bytes_read: int  # before any context
    bytes_read_per_row: float  # more for each token of context

    def lines(self) -> list[str]:
        """To be shown."""
        what = "a token" if self.tokens == 1 else f"{self.tokens} tokens of a prompt"
        return [
            f"{self.phase} on the NPU: {_listed(self.on_npu)}",
            f"{self.phase} on the CPU: {_listed(self.on_cpu) or 'nothing'}",
            f"{what}: {self.dispatches} dispatches, {self.host_parts} parts on the CPU, "
            f"{self.bytes_read / 1e6:,.1f} MB read by kernels, and "
            f"{self.bytes_read_per_row / 1e3:,.2f} KB for each token before",
        ]


def reports_of(path: Path, packages: Packages, *, capacity: int) -> tuple[Report, ...]:
    """Of each phase of a graph's file; `capacity`: rows that a lane may hold."""
    phases = phases_of(path, capacity)
    return tuple(_of(path, phase, packages, capacity) for phase in phases if phase)


def lines_of(reports: Sequence[Report]) -> list[str]:
    """All of them, and what no plan reads."""
    lines, last = [line for report in reports for line in report.lines()], reports[-1]
    if len(reports) == 1:
        lines.append("prefill: all on the CPU: what it carries on has no kernels for many tokens")
    elif last.stateful:
        lines.append(f"prefill: what is left, fewer than {last.tokens} tokens, on the CPU")
    return lines


def _of(path: Path, phase: Phase, packages: Packages, capacity: int) -> Report:
    plan = phase.plan
    package = packages(path, plan.wanted)
    on_npu = Counter({each.node: each.function for each in plan.dispatches}.values())
    parts = [step for step in plan.steps if isinstance(step, HostPart)]
    on_cpu = Counter(node.op_type for part in parts for node in part.nodes if node.domain == OURS)
    last = (capacity - 1) // plan.tokens * plan.tokens
    least, most = (_bytes_read(plan, package, offset) for offset in (0, last))
    return Report(
        phase.name,
        plan.tokens,
        plan.memory != plan.rows,
        dict(on_npu),
        dict(on_cpu),
        len(plan.dispatches),
        len(parts),
        least,
        (most - least) / max(1, last),
    )


def _bytes_read(plan: Plan, package: Package, offset: int) -> int:
    known = {"offset": offset, "length": offset + plan.tokens, "first": 0}
    return sum(_read_by(dispatch, package, known) for dispatch in plan.dispatches)


def _read_by(dispatch: Dispatch, package: Package, known: Mapping[str, int]) -> int:
    from npu_kernels.txn import NPU2, parse, traffic

    binding = dispatch.binding
    entry = package.kernel(binding.folder, binding.design, binding.parameters)
    values = {name: evaluate(formula, known) for name, formula in binding.values.items()}
    return traffic(parse(entry.words(**values)), NPU2).bytes_read


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
