"""What one more snapshot takes, given how far the trie goes along its tokens already."""

from dataclasses import dataclass

from flm.core.prompt import BoundaryKind
from flm.prefix.trie import TOKEN_BYTES, Match


@dataclass(frozen=True, slots=True)
class Addition:
    domain: str
    tokens: bytes  # from 0, packed
    kind: BoundaryKind
    row_bytes: int
    state_bytes: int  # 0: the model has no state
    logits_bytes: int  # 0: none are kept with it
    modest: bool = False  # only what it outgrows goes for it
    apart: bool = False  # it comes later, when an edge that it shares in part may be gone

    @property
    def offset(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    def slots(self, match: Match) -> int:
        """0 if its slot is there already, so that at most logits come in addition."""
        return 0 if match.node.end == self.offset and match.node.slot else 1

    def start(self, match: Match) -> int:
        """The first row to save. A state comes with a row, even when none is missing."""
        length = match.node.end if self.apart else match.length
        return min(length, self.offset - 1) if self.state_bytes else length

    def bytes(self, match: Match) -> int:
        """At the peak: while the edge of `match.child` is split, or once all is saved."""
        if not self.slots(match):
            return self.logits_bytes
        rows = self.offset - self.start(match)
        split = match.child.split_bytes if match.child and not self.apart else 0
        return max(rows * self.row_bytes + self.state_bytes + self.logits_bytes, split)
