"""Which kind of boundary is given up before which: the longer a kind serves, the later it goes."""

from flm.core.prompt import BoundaryKind

ORDER = (
    BoundaryKind.END,
    BoundaryKind.OPENER,
    BoundaryKind.TURN,
    BoundaryKind.FORK,
    BoundaryKind.HINT,
    BoundaryKind.HEAD,
)
RANK = {kind: rank for rank, kind in enumerate(ORDER)}
SHARED = {BoundaryKind.FORK, BoundaryKind.HINT, BoundaryKind.HEAD}
RANK_SHARED = min(RANK[kind] for kind in SHARED)  # those below are a conversation's own
