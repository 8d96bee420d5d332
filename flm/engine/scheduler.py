"""What the next pass computes. Pure: it reads sequences and returns a Step.

* Chunks and decode steps alternate while there is work of both kinds, so a decoding lane never
  waits longer than one chunk.
* What a person waits for is read first: of every four chunks the others have one, and never two in
  a row while a person waits.
* Among prompts of either kind, the one with least left to read goes first, the older of equals: a
  short request does not wait behind a long prompt, and of several that begin alike the first reads
  the shared start to its boundary before the others come to it. Every fourth chunk is the oldest
  prompt's, so that none waits forever.
* A chunk never crosses a cut, and leaves no single token behind: one alone is read otherwise. The
  first ones of a prompt are so long that they end at `first_min`: sooner they are, too.
* Where pictures have to be whole, a chunk ends before one or behind it, and may be longer than
  usual by a picture, which image-max-tokens bounds.
* Where a device has a grid, chunks that do not come to a cut end on it, and a token alone is read
  as any other.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from flm.core.picture import Placed
from flm.core.sequence import Phase, Sequence
from flm.core.step import Span, Step

OTHERS_EVERY = 4  # chunks, while a person waits
OLDEST_EVERY = 4  # chunks
CHUNK_LEN_START = 64  # tokens, until a chunk was measured
ALONE = 2  # times as long, a chunk that nobody waits behind
IDLE = 2  # times shorter, one of idle work
CHUNK_LEN_MIN = 16  # a pass costs about as much for fewer


@dataclass(slots=True)
class Pace:
    """How long a chunk may be to take `s_target`, from the chunks measured so far."""

    s_target: float
    len_max: int
    tokens_per_s: float | None = None

    @property
    def chunk_len(self) -> int:
        if self.tokens_per_s is None:
            return min(CHUNK_LEN_START, self.len_max)
        return min(max(int(self.tokens_per_s * self.s_target), CHUNK_LEN_MIN), self.len_max)

    def chunk_len_of(self, *, alone: bool, idle: bool) -> int:
        """For a prompt that nobody waits behind: fewer passes, each of more rows, read faster. For
        idle work: half a chunk, for somebody may come and will wait behind it.
        """
        if idle:
            return max(self.chunk_len // IDLE, min(CHUNK_LEN_MIN, self.len_max))
        return min(ALONE * self.chunk_len, self.len_max) if alone else self.chunk_len

    def measured(self, tokens: int, seconds: float) -> None:
        """Takes in what a chunk took; a short rest is not measured, a pass has a fixed cost."""
        if seconds <= 0 or tokens < self.chunk_len // 2:
            return
        speed = tokens / seconds
        before = self.tokens_per_s or speed
        self.tokens_per_s = (before + speed) / 2


@dataclass(slots=True)
class Rota:
    """Whose chunk is next, by those so far: of prompts that a person waits for, and of others."""

    in_a_row: int = 0  # of those a person waits for
    run: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})  # is it one of those

    def next(self, reading: Iterable[Sequence], urgent: Collection[Sequence]) -> Sequence:
        """Of `reading`, oldest first."""
        kinds: dict[bool, list[Sequence]] = {True: [], False: []}
        for sequence in reading:
            kinds[sequence in urgent].append(sequence)
        first = bool(kinds[True]) and not (kinds[False] and self.in_a_row >= OTHERS_EVERY - 1)
        oldest = self.run[first] % OLDEST_EVERY == OLDEST_EVERY - 1
        return kinds[first][0] if oldest else min(kinds[first], key=_left)

    def note(self, *, urgent: bool) -> None:
        """A chunk was read."""
        self.in_a_row = self.in_a_row + 1 if urgent else 0
        self.run[urgent] += 1


def schedule(
    sequences: Iterable[Sequence],
    *,
    chunk_len: int,
    rota: Rota,
    decode_is_due: bool,
    urgent: Collection[Sequence] = (),
    first_min: int = 1,
    grid: int = 1,
    whole: bool = False,
) -> Step | None:
    """The next step of sequences in lanes, oldest first; None when there is nothing to compute.

    `urgent` are those that a person waits for; `decode_is_due` says that the last was a chunk;
    `whole`, that no pass may end within a picture.
    """
    sequences = list(sequences)
    decoding = [sequence for sequence in sequences if sequence.phase is Phase.DECODE]
    reading = [sequence for sequence in sequences if sequence.phase is Phase.PREFILL]
    if decoding and (decode_is_due or not reading):
        return Step(tuple(sorted(map(_newest, decoding), key=_lane)), prefill=False)
    if not reading:
        return None
    chosen = rota.next(reading, urgent)
    return Step((_chunk(chosen, chunk_len, first_min, grid, whole),), prefill=True)


def next_cut(sequence: Sequence) -> int:
    """The nearest cut ahead, the prompt's end, or that of what it has generated if read again."""
    ends = (*sequence.cuts, sequence.prompt_length, len(sequence.tokens))
    return next(offset for offset in ends if offset > sequence.computed)


def _chunk(sequence: Sequence, chunk_len: int, first_min: int, grid: int, whole: bool) -> Span:
    start, cut = sequence.computed, next_cut(sequence)
    pictures = sequence.request.prompt.pictures
    least = max(2, first_min - start)
    length = min(max(chunk_len, least), cut - start)
    if grid > 1:
        assert not whole, "pictures on a grid"
        fewest, end = -(-(start + least) // grid) * grid, (start + length) // grid * grid
        length = min(max(end, fewest), cut) - start if start + length < cut else length
    elif cut - start - length == 1:
        length += 1 if length == least else -1
    if whole and (cleft := _within(start + length, pictures)):
        length = (cleft.start if cleft.start - start >= least else cleft.end) - start
        length += cut - start - length == 1
    assert sequence.lane is not None
    tokens = tuple(sequence.tokens[start : start + length])
    return Span(sequence.lane, start, tokens, pictures)


def _within(offset: int, pictures: Iterable[Placed]) -> Placed | None:
    """The picture that has tokens before and after `offset`."""
    return next((each for each in pictures if each.start < offset < each.end), None)


def _newest(sequence: Sequence) -> Span:
    assert sequence.lane is not None
    pictures = sequence.request.prompt.pictures
    return Span(sequence.lane, sequence.computed, (sequence.tokens[-1],), pictures)


def _left(sequence: Sequence) -> int:
    return len(sequence.tokens) - sequence.computed


def _lane(span: Span) -> int:
    return span.lane
