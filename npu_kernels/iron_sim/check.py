"""Every budget of a design, before it runs. Each finding carries its rule's name.

What the array cannot do is hard. What has hung or lied on somebody's NPU is advice; strict asks for
both.
"""

from __future__ import annotations

from collections.abc import Iterator

from npu_kernels.iron_sim.budgets import budgets
from npu_kernels.iron_sim.descriptors import descriptors
from npu_kernels.iron_sim.faults import DesignFault
from npu_kernels.iron_sim.finding import Finding
from npu_kernels.iron_sim.lower import lower
from npu_kernels.iron_sim.record import Record
from npu_kernels.iron_sim.schedule import schedule


def findings(record: Record) -> tuple[Finding, ...]:
    return tuple(_found(record))


def _found(record: Record) -> Iterator[Finding]:
    try:
        lowered = lower(record)
    except DesignFault as fault:
        yield Finding(fault.rule, fault.where, fault.what, fault.fix)
        return
    yield from budgets(record, lowered)
    for rules in (descriptors, schedule):
        try:
            yield from rules(record)
        except DesignFault as fault:
            yield Finding(fault.rule, fault.where, fault.what, fault.fix)


def check(record: Record, *, strict: bool = False) -> None:
    """Raises the first finding: hard ones first, and advice only if strict."""
    found = sorted(findings(record), key=lambda finding: not finding.hard)
    for finding in found:
        if finding.hard or strict:
            raise DesignFault(finding.rule, finding.where, finding.what, finding.fix)
