"""The scheduler's promises, over sequences of any shape."""

from hypothesis import given
from hypothesis import strategies as st

from flm.core.picture import Picture, Placed
from flm.core.prompt import Prompt
from flm.core.request import Request, SamplingParams
from flm.core.sequence import Phase, Sequence
from flm.engine.scheduler import (
    CHUNK_LEN_MIN,
    OLDEST_EVERY,
    OTHERS_EVERY,
    Pace,
    Rota,
    next_cut,
    schedule,
)


def reading(lane: int, length: int, *, computed: int = 0, cuts: tuple[int, ...] = ()) -> Sequence:
    request = Request(f"r{lane}", Prompt(tuple(range(length))), SamplingParams(), 4)
    return Sequence(request, 0.0, Phase.PREFILL, lane, computed=computed, cuts=cuts)


def decoding(lane: int, length: int) -> Sequence:
    sequence = reading(lane, length, computed=length)
    sequence.phase = Phase.DECODE
    sequence.tokens.append(1000 + lane)
    return sequence


def plan(
    *sequences: Sequence,
    chunk_len: int = 10,
    rota: Rota | None = None,
    due: bool = False,
    urgent: tuple[Sequence, ...] = (),
):
    rota = rota or Rota()
    return schedule(sequences, chunk_len=chunk_len, rota=rota, decode_is_due=due, urgent=urgent)


def test_there_may_be_nothing_to_do() -> None:
    assert plan() is None


def test_a_decode_step_has_every_decoding_lane_in_order() -> None:
    step = plan(decoding(2, 7), reading(1, 9), decoding(0, 5), due=True)
    assert not step.prefill
    assert [(span.lane, span.start, span.tokens) for span in step.spans] == [
        (0, 5, (1000,)),
        (2, 7, (1002,)),
    ]


def test_chunks_and_decode_steps_alternate_while_there_are_both() -> None:
    both = decoding(0, 5), reading(1, 9)
    assert plan(*both, due=False).prefill
    assert not plan(*both, due=True).prefill
    assert not plan(decoding(0, 5), due=False).prefill
    assert plan(reading(1, 9), due=True).prefill


def test_least_left_goes_first_and_the_older_of_equals() -> None:
    lanes = reading(0, 90), reading(1, 50, computed=30), reading(2, 20)
    assert plan(*lanes).spans[0].lane == 1
    assert plan(lanes[0], lanes[2], reading(3, 20)).spans[0].lane == 2


def test_the_oldest_has_every_fourth_chunk() -> None:
    lanes = reading(0, 90), reading(1, 20)
    rota, chosen = Rota(), []
    for _ in range(2 * OLDEST_EVERY):
        chosen.append(plan(*lanes, rota=rota).spans[0].lane)
        rota.note(urgent=False)
    assert chosen == [1, 1, 1, 0] * 2


@given(
    length=st.integers(1, 80),
    cuts=st.sets(st.integers(1, 80)),
    chunk_len=st.integers(1, 40),
)
def test_chunks_read_all_cross_no_cut_and_leave_no_lone_token(length, cuts, chunk_len) -> None:
    cuts = tuple(sorted(cut for cut in cuts if cut <= length))
    sequence = reading(0, length, cuts=cuts)
    read = []
    while sequence.computed < length:
        start, cut = sequence.computed, next_cut(sequence)
        span = plan(sequence, chunk_len=chunk_len).spans[0]
        assert span.start == start
        assert 0 < len(span.tokens) <= max(chunk_len, 3)
        assert span.end <= cut
        if cut - start > 1:
            assert len(span.tokens) > 1
        read += span.tokens
        sequence.computed = span.end
    assert read == list(range(length))


@given(fixed_s=st.floats(0, 0.2), token_s=st.floats(1e-5, 0.1), len_max=st.integers(1, 4096))
def test_pace_finds_the_chunk_that_takes_its_target(fixed_s, token_s, len_max) -> None:
    pace = Pace(0.25, len_max)
    for _ in range(60):
        chunk = pace.chunk_len
        assert 1 <= chunk <= len_max
        pace.measured(chunk, fixed_s + chunk * token_s)
    took = fixed_s + chunk * token_s
    assert took <= 0.25 * 1.05 or chunk <= CHUNK_LEN_MIN
    one_more = took + max(1, chunk // 20) * token_s
    assert one_more >= 0.25 * 0.9 or chunk == len_max or chunk <= CHUNK_LEN_MIN


def test_a_short_rest_says_nothing_about_the_pace() -> None:
    pace = Pace(0.25, 4096)
    pace.measured(64, 0.1)
    before = pace.chunk_len
    assert before < pace.chunk_len_of(alone=True, idle=False) <= pace.len_max
    assert before == 160
    pace.measured(3, 0.1)
    pace.measured(200, 0.0)
    assert pace.chunk_len == before


@given(
    lengths=st.lists(st.tuples(st.integers(2, 90), st.booleans()), min_size=1, max_size=6),
    chunks=st.integers(1, 60),
)
def test_a_person_and_the_others_both_get_on(lengths, chunks) -> None:
    lanes = [reading(lane, 10_000 + length) for lane, (length, _) in enumerate(lengths)]
    urgent = tuple(lanes[lane] for lane, (_, person) in enumerate(lengths) if person)
    rota, kinds = Rota(), []
    for _ in range(chunks):
        lane = plan(*lanes, rota=rota, urgent=urgent).spans[0].lane
        lanes[lane].computed += 10
        kinds.append(lengths[lane][1])
        rota.note(urgent=kinds[-1])
    both = len({person for _, person in lengths}) == 2
    for at in range(len(kinds)):
        if both and at:
            assert kinds[at - 1] or kinds[at], "two chunks of others in a row"
        if both and at >= OTHERS_EVERY - 1:
            assert not all(kinds[at - OTHERS_EVERY + 1 : at + 1]), "others do not get on"


def test_the_oldest_of_either_kind_has_every_fourth_chunk_of_its_kind() -> None:
    lanes = reading(0, 9000), reading(1, 9000), reading(2, 200), reading(3, 200)
    rota, chosen = Rota(), []
    for _ in range(32):
        lane = plan(*lanes, rota=rota, urgent=(lanes[0], lanes[2])).spans[0].lane
        chosen.append(lane)
        rota.note(urgent=lane in (0, 2))
    assert (chosen.count(0), chosen.count(2), chosen.count(1), chosen.count(3)) == (6, 18, 2, 6)


@given(
    texts=st.lists(st.integers(0, 40), min_size=2, max_size=5),
    sizes=st.lists(st.integers(2, 40), min_size=4, max_size=4),
    first_min=st.sampled_from([1, 65]),
    chunk_len=st.integers(1, 50),
)
def test_no_chunk_ends_within_a_picture_that_has_to_be_whole(
    texts: list[int], sizes: list[int], first_min: int, chunk_len: int
) -> None:
    shown: list[Placed] = []
    at = texts[0]
    for text, size in zip(texts[1:], sizes, strict=False):
        shown.append(Placed(Picture(1, 1, b"rgb"), "it", at, 1, size))
        at += size + text
    prompt = Prompt(tuple(range(at)), pictures=tuple(shown))
    sequence = Sequence(Request("r", prompt, SamplingParams(), 4), 0.0, Phase.PREFILL, lane=0)
    while sequence.computed < at:
        start, least = sequence.computed, max(2, first_min - sequence.computed)
        step = schedule(
            [sequence],
            chunk_len=chunk_len,
            rota=Rota(),
            decode_is_due=False,
            first_min=first_min,
            whole=True,
        )
        assert step
        (span,) = step.spans
        assert not any(each.start < span.end < each.end for each in shown)
        assert len(span.tokens) >= min(least, at - start)
        assert at - span.end != 1
        assert len(span.tokens) <= max(chunk_len, least) + max(sizes)
        sequence.computed = span.end
