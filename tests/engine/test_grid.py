"""A device whose numbers hang on where a prompt is cut: with a state, that is on a grid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.devices.null import NullProgram
from flm.engine.scheduler import Rota, next_cut, schedule
from flm.prefix.tally import AUDITS
from tests.engine.rig import STATEFUL, STATELESS, Rig, prompt_of, request_of, some_tokens
from tests.engine.test_scheduler import reading
from tests.pure.toy import toy_cache

GRID = 8
HEAD = some_tokens(1, 45)


@pytest.fixture
def rig(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(NullProgram, "grid", GRID)
    return Rig(tmp_path, layout=STATEFUL, audit_every=1)


@given(
    length=st.integers(1, 90),
    start=st.integers(0, 89),
    cut=st.integers(1, 11),
    chunk_len=st.integers(1, 40),
)
def test_a_chunk_that_does_not_come_to_a_cut_ends_on_the_grid(
    length: int, start: int, cut: int, chunk_len: int
) -> None:
    cuts = (cut * GRID,) if cut * GRID < length else ()
    sequence = reading(0, length, computed=min(start, length - 1), cuts=cuts)
    step = schedule([sequence], chunk_len=chunk_len, rota=Rota(), decode_is_due=False, grid=GRID)
    assert step
    (span,) = step.spans
    assert span.start < span.end <= next_cut(sequence)
    assert span.end == next_cut(sequence) or span.end % GRID == 0
    assert span.end - span.start < chunk_len + 2 * GRID


def test_boundaries_are_kept_where_the_grid_was_last() -> None:
    """Of those that come to lie together, the first: it is what most prompts share."""
    kinds = (BoundaryKind.HEAD, BoundaryKind.HINT, BoundaryKind.TURN, BoundaryKind.END)
    boundaries = tuple(map(Boundary, (5, 13, 15, 27), kinds))
    cache = toy_cache()
    cache.grid = GRID
    lease = cache.lease(Prompt(tuple(range(27)), boundaries))
    assert lease.boundaries == (Boundary(8, BoundaryKind.HINT), Boundary(24, BoundaryKind.END))
    assert lease.cuts == (8, 24)
    assert lease.plan_fork(21)
    assert [each.offset for each in lease.boundaries] == [8, 16, 24]
    lease.close()


def test_a_state_is_kept_on_the_grid_and_found_again(rig: Rig) -> None:
    prompts = [prompt_of(HEAD, some_tokens(seed, 20 + seed)) for seed in range(2, 6)]
    for number, prompt in enumerate(prompts):
        rig.run(request_of(f"{number}", prompt))
        rig.run(request_of(f"{number} again", prompt))
        length = len(prompt.tokens)
        assert rig.finished(f"{number} again").usage.cached_tokens == length - length % GRID
    assert rig.finished("3").usage.cached_tokens == len(HEAD) - len(HEAD) % GRID
    assert {node.end % GRID for node in rig.cache.slots.values()} == {0}
    assert rig.cache.tally.of(AUDITS, "different") == 0 < rig.cache.tally.of(AUDITS, "equal")
    starts = {span.start % GRID for step in rig.steps if step.prefill for span in step.spans}
    assert starts == {0}


@pytest.mark.parametrize("length", [1, GRID + 1, 5 * GRID + 1])
def test_a_token_behind_the_grid_is_read_alone(rig: Rig, length: int) -> None:
    rig.run(request_of("one", some_tokens(9, length)))
    rig.run(request_of("longer", some_tokens(9, length + 30)))
    assert rig.finished("longer").usage.cached_tokens in (0, length - 1)


def test_rows_alone_are_cut_anywhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NullProgram, "grid", GRID)
    rig = Rig(tmp_path, layout=STATELESS)
    for seed in (2, 3):
        rig.run(request_of(f"{seed}", prompt_of(HEAD, some_tokens(seed, 20))))
    assert rig.finished("3").usage.cached_tokens == len(HEAD)
