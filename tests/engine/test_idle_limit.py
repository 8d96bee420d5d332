"""Work that nobody waits for is bounded, and whoever had to go is told."""

from dataclasses import replace

import numpy as np

from flm.core.request import Priority
from flm.core.sequence import Sequence
from flm.engine.idle import IDLE_MAX, IdleWork
from tests.engine.rig import CONVERSATION, request_of
from tests.pure.toy import toy_cache


def idle(name: str) -> Sequence:
    return Sequence(replace(request_of(name, CONVERSATION), priority=Priority.IDLE), 0.0)


def test_an_audit_pushes_nothing_out() -> None:
    work = IdleWork(toy_cache(), audit_every=1)
    assert not any(work.add(idle(f"r{number}")) for number in range(IDLE_MAX))
    reused = Sequence(request_of("reused", CONVERSATION), 0.0)
    reused.cached_tokens = 5
    work.compare(reused, np.zeros(4, np.float32), now=1.0)
    assert [work.take().request.id for _ in range(len(work))] == [
        f"r{number}" for number in range(IDLE_MAX)
    ]
    work.compare(reused, np.zeros(4, np.float32), now=1.0)
    assert work.take().request.id == "reused-audit"


def test_who_lost_its_lane_may_come_back_to_a_full_queue() -> None:
    work = IdleWork(toy_cache())
    work.add(idle("first"))
    first = work.take()
    for number in range(IDLE_MAX):
        work.add(idle(f"r{number}"))
    work.put_back(first)
    work.check()
    gone = work.add(idle("one more"))
    work.check()
    assert gone
    assert gone.request.id == "first"
