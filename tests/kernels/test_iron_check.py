"""Each budget has a name, and a design that breaks it and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from npu_kernels.iron_sim import DesignFault, check, findings
from npu_kernels.iron_sim.loops import range_
from npu_kernels.iron_sim.record import Record
from tests.kernels import broken
from tests.kernels.designs import copying

QUARTER: dict[str, Any] = {"sizes": [4096], "strides": [1]}
ROW_WORDS_MAX = 1 << 20


def rules(record: Record, *, hard: bool) -> set[str]:
    return {finding.rule for finding in findings(record) if finding.hard == hard}


def test_a_plain_design_has_no_finding() -> None:
    assert findings(copying()) == ()
    check(copying(), strict=True)


HARD: dict[str, Callable[[], Record]] = {
    "l1-data": lambda: copying(4096, 1),  # four objects of 16 KB, and a stack
    "l2-data": lambda: broken.forwarding(16384, depth=9),
    "core-channels": lambda: broken.fan_in(3),
    "shim-channels": lambda: broken.crowded_shim(3),
    "memtile-channels": lambda: broken.joining(7),
    "core-descriptors": lambda: copying(64, depth=9),
    "memtile-descriptors": lambda: broken.forwarding(64, depth=25),
    "locks": lambda: broken.many_barriers(13),
    "shim-descriptors": lambda: broken.kept_descriptors(15),
    "queue-depth": lambda: broken.filling(*[QUARTER] * 5),
    "dims": lambda: broken.filling({"sizes": [2, 8, 4, 2, 128], "strides": [0, 2048, 512, 384, 1]}),
    "wrap": lambda: broken.filling({"sizes": [4, 1024], "strides": [2048, 1]}),
    "stride": lambda: broken.forwarding(
        2 * ROW_WORDS_MAX, sizes=[2, 64], strides=[ROW_WORDS_MAX + 1, 1]
    ),
    "repeat": lambda: broken.filling({"sizes": [65, 2, 2, 16], "strides": [32, 128, 64, 1]}),
    "granularity": broken.halves,
    "await-order": broken.out_of_order,
    "dram-hazard": lambda: broken.rereading(awaited=False),
    "drain-awaited": broken.unawaited,
    "placement": broken.misplaced,
}


@pytest.mark.parametrize("rule", HARD)
def test_hard(rule: str) -> None:
    record = HARD[rule]()
    assert rules(record, hard=True) == {rule}
    with pytest.raises(DesignFault) as fault:
        check(record)
    assert fault.value.rule == rule


ADVICE: dict[str, Callable[[], Record]] = {
    "stack-unstated": lambda: copying(stack=None),
    "l1-multiple": lambda: copying(72),
    "transfer-short": lambda: copying(32, 1),
    "queue-depth": lambda: broken.filling(*[QUARTER] * 4),
    "join-width": lambda: broken.joining(5),
    "program-estimate": lambda: copying(body=broken.loops(range)),
    "arguments": lambda: broken.forwarding(64, arguments=6),
    "barrier-released": lambda: copying(body=broken.gives_back, more=broken.barrier),
    "one-symbol": lambda: copying(body=broken.two_kernels, more=broken.another_kernel),
}


@pytest.mark.parametrize("rule", ADVICE)
def test_advice(rule: str) -> None:
    record = ADVICE[rule]()
    assert rules(record, hard=True) == set()
    assert rules(record, hard=False) == {rule}
    check(record)
    with pytest.raises(DesignFault) as fault:
        check(record, strict=True)
    assert fault.value.rule == rule


def test_hard_findings_come_before_advice() -> None:
    with pytest.raises(DesignFault, match=r"l1-data: core .0,2."):
        check(copying(4096, 1, stack=None), strict=True)


def test_a_length_has_fourteen_bits_in_a_core() -> None:
    """Which is one word less than its memory."""
    assert rules(broken.holding(16384), hard=True) == {"length", "l1-data"}


def test_acquiring_the_whole_depth_takes_one_object_more() -> None:
    def all_at_once(come: Any, leave: Any, copy: Any) -> None:
        copy(come.acquire(3)[0], leave.acquire(1))

    # Six objects of 10 KB and a stack fit, a seventh object does not.
    assert findings(copying(2560, depth=3, body=broken.copies_once)) == ()
    assert rules(copying(2560, depth=3, body=all_at_once), hard=True) == {"l1-data"}


def test_a_loop_of_the_array_is_code_once() -> None:
    assert findings(copying(body=broken.loops(range_))) == ()


def test_what_was_awaited_may_be_read() -> None:
    assert rules(broken.rereading(awaited=True), hard=True) == set()


def test_a_contiguous_transfer_has_no_wrap() -> None:
    assert rules(broken.filling({"sizes": [8, 2048], "strides": [2048, 1]}), hard=True) == set()
