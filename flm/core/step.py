"""A step is one forward pass: for each lane in it, the span of tokens to compute."""

from dataclasses import dataclass

from flm.core.picture import Placed


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, start + len(tokens)) of the sequence in `lane`; its prompt has `pictures`."""

    lane: int
    start: int
    tokens: tuple[int, ...]
    pictures: tuple[Placed, ...] = ()

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Step:
    """Either one prefill span (a chunk) or one new token for each of several lanes."""

    spans: tuple[Span, ...]
    prefill: bool

    def __post_init__(self) -> None:
        assert self.spans, "an empty step"
        if self.prefill:
            assert len(self.spans) == 1
        else:
            assert all(len(span.tokens) == 1 for span in self.spans)
            lanes = [span.lane for span in self.spans]
            assert lanes == sorted(set(lanes)), f"lanes out of order: {lanes}"
