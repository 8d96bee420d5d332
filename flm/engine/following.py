"""Who waits for whom, of prompts that begin alike: one reads, the others take what it keeps.

Pure. A prompt follows only one that stands before it in `in_order`, and that one reads: so no two
wait for each other, and whoever loses its leader reads on its own.
"""

from collections.abc import Iterable, Sequence

from flm.core.alike import common_length
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.sequence import Phase
from flm.engine.active import Active
from flm.prefix.lease import Manners
from flm.prefix.trie import TOKEN_BYTES


def shared_length(one: Prompt, other: Prompt) -> int:
    """How many tokens both begin with; none across domains."""
    if one.domain != other.domain:
        return 0
    return common_length(one.packed, other.packed) // TOKEN_BYTES


def followers(actives: Iterable[Active], gain_min: int) -> dict[Active, Active]:
    """Those that need not read yet, each with whom it follows: that one will keep what it needs at
    least `gain_min` of.
    """
    leaders: list[Active] = []
    waiting = {}
    for active in in_order(actives):
        own = active.lease.manners is not Manners.BLIND and not active.restored
        serving = (lead for lead in leaders if own and _serves(lead, active, gain_min))
        if leader := next(serving, None):
            waiting[active] = leader
        else:
            leaders.append(active)
    return waiting


def in_order(actives: Iterable[Active]) -> Sequence[Active]:
    """Prompts that are being read: those under way first, then as they came."""
    reading = (active for active in actives if active.sequence.phase is Phase.PREFILL)
    return sorted(reading, key=lambda active: not active.restored)


def _serves(leader: Active, follower: Active, gain_min: int) -> bool:
    shared = follower.shared.get(leader.id) or leader.shared.get(follower.id) or 0
    least = follower.sequence.computed + gain_min
    return any(
        leader.sequence.computed < each.offset and least <= each.offset <= shared
        for each in leader.lease.boundaries
        if leader.lease.could_keep(each)
    )


def introduce(newcomer: Active, others: Iterable[Active], gain_min: int) -> bool:
    """Note what it has in common with prompts that are being read, which will keep it there;
    whether that is worth waiting for.
    """
    prompt, waits = newcomer.sequence.request.prompt, False
    if newcomer.lease.manners is Manners.BLIND:
        return False
    for other in in_order(others):
        shared = shared_length(prompt, other.sequence.request.prompt)
        newcomer.shared[other.id] = shared
        least, cut = newcomer.lease.offset + gain_min, other.lease.cut_before(shared)
        fork = Boundary(cut, BoundaryKind.FORK)
        if other.sequence.computed < cut >= least and other.lease.could_keep(fork):
            waits = True
            if other.lease.plan_fork(cut):
                other.sequence.cuts = other.lease.cuts
    return waits
