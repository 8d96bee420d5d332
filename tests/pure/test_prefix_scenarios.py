"""What users were promised, and what other servers were reported for."""

import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import pytest

from flm.core.prompt import Boundary, Prompt
from flm.memory.snapshot import Snapshot
from flm.prefix.cache import PrefixCache
from tests.pure.toy import (
    END,
    LOGITS_BYTES,
    ROW_BYTES,
    STATE_BYTES,
    Log,
    Toy,
    begin,
    prompt,
    serve,
    toy_cache,
)

both = pytest.mark.parametrize("hybrid", [True, False], ids=["hybrid", "stateless"])


def text(seed: int, length: int) -> list[int]:
    """Tokens that part from any other seed's at once, as far as tokens ever do."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, 50_000, length)]


def snapshot_bytes(tokens: int, *, hybrid: bool = True) -> int:
    return tokens * ROW_BYTES + (STATE_BYTES if hybrid else 0) + LOGITS_BYTES


def keep_without_logits(cache: PrefixCache, tokens: Sequence[int]) -> None:
    request = prompt(tokens, end=len(tokens))
    lease, toy = begin(cache, request)
    toy.read(tokens[toy.length :])
    lease.keep(request.boundaries[0], toy.save)
    lease.close()
    cache.check()


# --- what is reused ---


@both
def test_a_later_turn_starts_where_the_last_prompt_ended(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid)
    first = text(0, 100)
    assert serve(cache, first, head=60, end=100) == 0
    assert serve(cache, first + text(1, 50), head=60, end=150) == 100


@both
def test_two_conversations_share_their_system_prompt_and_store_it_once(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid)
    head = text(0, 90)
    serve(cache, head + text(1, 30), head=90, end=120)
    one = cache.bytes_kept
    assert serve(cache, head + text(2, 30), head=90, end=120) == 90
    assert cache.bytes_kept - one == snapshot_bytes(30, hybrid=hybrid)


def test_without_state_any_common_prefix_is_reused() -> None:
    cache = toy_cache(hybrid=False)
    shared = text(0, 77)
    serve(cache, shared + text(1, 30))
    assert serve(cache, shared + text(2, 30)) == 77
    assert serve(cache, shared[:40]) == 39, "all but the token whose logits are wanted"


def test_with_state_only_what_was_kept_whole_is_reused() -> None:
    cache = toy_cache(hybrid=True)
    shared = text(0, 77)
    serve(cache, shared + text(1, 30), head=50, end=107)
    assert serve(cache, shared + text(2, 30)) == 50
    assert serve(cache, shared[:50], end=50) == 0, "its last token has no logits yet"
    assert serve(cache, shared[:50], end=50) == 50, "but now it has"


@both
def test_an_identical_resend_reads_nothing(hybrid: bool) -> None:
    """https://github.com/ggml-org/llama.cpp/issues/23030, for all lengths around a chunk."""
    for length in range(1, 3 * 16 + 2):
        cache = toy_cache(hybrid=hybrid)
        tokens = text(length, length)
        assert serve(cache, tokens) == 0
        assert serve(cache, tokens) == length
        assert serve(cache, tokens) == length


@both
def test_logits_are_a_copy_that_no_request_can_change(hybrid: bool) -> None:
    cache, tokens = toy_cache(hybrid=hybrid), text(0, 10)
    request = prompt(tokens, end=10)
    lease, toy = begin(cache, request)
    toy.read(tokens)
    logits = toy.logits().copy()
    lease.keep(request.boundaries[0], toy.save, logits)
    lease.close()
    logits[:] = 0
    again = cache.lease(request)
    assert again.logits is not None
    assert again.logits.tobytes() == toy.logits().tobytes()
    with pytest.raises(ValueError, match="read-only"):
        again.logits[0] = 0


@pytest.mark.parametrize("shared", range(100, 2300, 500))
def test_one_shots_with_a_shared_start_always_share_it(shared: int) -> None:
    """https://github.com/vllm-project/vllm/issues/45238: hits fell to zero below some length."""
    cache = toy_cache(hybrid=False)
    start = text(0, shared)
    hits = [serve(cache, start + text(seed, 2200 - shared)) for seed in range(1, 5)]
    assert hits == [0, shared, shared, shared]


@both
def test_a_user_who_goes_back_and_forks_keeps_both_branches(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid)
    trunk = text(0, 100)
    serve(cache, trunk, head=40, end=100)
    left, right = trunk + text(1, 70), trunk + text(2, 70)
    assert serve(cache, left) == 100
    assert serve(cache, right) == 100
    assert serve(cache, left + text(3, 9)) == 170
    assert serve(cache, right + text(4, 9)) == 170


@both
def test_a_request_cancelled_on_the_way_leaves_what_it_crossed(hybrid: bool) -> None:
    """https://github.com/antirez/ds4/issues/333: the retry started from zero."""
    cache, tokens = toy_cache(hybrid=hybrid), text(0, 100)
    request = prompt(tokens, head=60, end=100)
    lease, toy = begin(cache, request)
    toy.read(tokens[:60])
    lease.keep(request.boundaries[0], toy.save)
    toy.read(tokens[60:80])
    lease.close()
    assert serve(cache, tokens, head=60, end=100) == 60


@both
def test_users_of_one_gateway_who_arrive_together_store_their_start_once(hybrid: bool) -> None:
    cache, start = toy_cache(hybrid=hybrid), text(0, 200)
    requests = [prompt(start + text(user, 7), head=200, end=207) for user in range(1, 5)]
    leases = [begin(cache, request) for request in requests]
    assert [lease.offset for lease, _ in leases] == [0, 0, 0, 0], "none was kept yet"
    for index in (0, 1):
        for request, (lease, toy) in zip(requests, leases, strict=True):
            boundary = request.boundaries[index]
            toy.read(request.tokens[toy.length : boundary.offset])
            assert lease.keep(boundary, toy.save, toy.logits() if index else None)
            cache.check()
    for lease, _ in leases:
        lease.close()
    states = STATE_BYTES if hybrid else 0
    assert cache.bytes_kept == 200 * ROW_BYTES + states + 4 * snapshot_bytes(7, hybrid=hybrid)


# --- what is not worth keeping ---


@both
def test_short_side_calls_are_not_kept_and_evict_nothing(hybrid: bool) -> None:
    """A title call with its own short system prompt, after each turn."""
    conversation = text(0, 300)
    room = snapshot_bytes(900) + STATE_BYTES
    log = Log()
    cache = toy_cache(hybrid=hybrid, bytes_max=room, gain_min=64, log=log)
    serve(cache, conversation, head=200, end=300)
    for turn in range(1, 6):
        title = text(1000, 20) + text(1000 + turn, 40)
        kept = cache.bytes_kept
        assert serve(cache, title, head=20, end=60) == 0
        assert cache.bytes_kept == kept
        before = len(conversation)
        conversation = conversation + text(turn, 100)
        assert serve(cache, conversation, head=200, end=len(conversation)) == before
    assert not log.having("dropping the least recently used")


@both
def test_long_side_calls_do_not_push_out_a_conversation_in_use(hybrid: bool) -> None:
    """They have their own head of 100 tokens and 80 of content; there are few slots."""
    cache = toy_cache(hybrid=hybrid, slots_max=4, gain_min=64)
    conversation = text(0, 300)
    serve(cache, conversation, head=200, end=300)
    for turn in range(1, 8):
        serve(cache, text(1000, 100) + text(1000 + turn, 80), head=100, end=180)
        before = len(conversation)
        conversation = conversation + text(turn, 100)
        assert serve(cache, conversation, head=200, end=len(conversation)) == before


@both
def test_a_small_gain_is_skipped_and_said_with_its_numbers(hybrid: bool) -> None:
    log = Log()
    cache = toy_cache(hybrid=hybrid, gain_min=128, log=log)
    first = text(0, 300)
    serve(cache, first, head=200, end=300)
    kept = cache.bytes_kept
    assert serve(cache, first + text(1, 70)) == 300
    assert cache.bytes_kept == kept
    assert log.lines[-1] == (
        "Prefix cache: not saved, only 70 tokens past slot 2 (needs 128, --prefix-min-gain)"
    )
    assert serve(cache, first + text(1, 70) + text(2, 70)) == 300, "140 more than what is kept"
    assert serve(cache, first + text(1, 70) + text(2, 70)) == 440


@both
def test_the_boundaries_of_one_request_never_skip_each_other(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid, gain_min=64)
    serve(cache, text(0, 103), head=98, turn=100, end=103)
    assert cache.slot_count == 3


@both
def test_an_end_that_is_kept_already_is_refreshed_and_gains_logits(hybrid: bool) -> None:
    cache, tokens = toy_cache(hybrid=hybrid, gain_min=64), text(0, 100)
    serve(cache, tokens + text(1, 100), head=100, end=200)
    kept = cache.bytes_kept
    serve(cache, tokens, end=100)
    assert cache.bytes_kept == kept + LOGITS_BYTES
    assert cache.slot_count == 2
    assert serve(cache, tokens, end=100) == 100


# --- who goes first ---


@both
def test_older_ends_of_a_conversation_with_a_newer_one_go_first(hybrid: bool) -> None:
    log = Log()
    cache = toy_cache(hybrid=hybrid, slots_max=4, log=log)
    old, long = text(0, 100), text(1, 100)
    serve(cache, old)  # slot 1, the least recently used
    for turns in (1, 2, 3):
        serve(cache, long + text(2, 50 * turns))  # slots 2, 3, 4: each outgrows the last
    serve(cache, text(3, 100))
    assert log.having("dropping") == [
        "Prefix cache: dropping an outgrown end snapshot (150 tokens)"
    ]
    assert serve(cache, old) == 100


@both
def test_then_the_least_recently_used_end_goes_and_a_head_outlives_them_all(hybrid: bool) -> None:
    log = Log()
    cache = toy_cache(hybrid=hybrid, slots_max=3, log=log)
    head = text(0, 80)
    serve(cache, head + text(1, 20), head=80, end=100)
    serve(cache, head + text(2, 21), head=80, end=101)
    assert serve(cache, head + text(1, 20)) == 100, "the second is now the older"
    serve(cache, head + text(3, 22), head=80, end=102)
    assert log.having("dropping") == [
        "Prefix cache: dropping the least recently used end snapshot (101 tokens)"
    ]
    serve(cache, text(4, 33), head=30, end=33)  # two slots: both ends must go, the head need not
    assert serve(cache, head + text(5, 20)) == 80


@both
def test_a_head_goes_when_nothing_depends_on_it_any_more(hybrid: bool) -> None:
    log = Log()
    cache = toy_cache(hybrid=hybrid, slots_max=2, log=log)
    serve(cache, text(0, 100), head=80, end=100)
    serve(cache, text(1, 100), head=80, end=100)
    assert log.having("dropping") == [
        "Prefix cache: dropping the least recently used end snapshot (100 tokens)",
        "Prefix cache: dropping the least recently used head snapshot (80 tokens)",
    ]


@both
def test_of_two_heads_the_one_that_the_other_builds_on_goes_last(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid, slots_max=2)
    system, project = text(0, 50), text(1, 50)
    serve(cache, system + text(2, 9), head=50)
    serve(cache, system + project + text(3, 9), head=100)
    serve(cache, text(4, 60), head=50)
    assert serve(cache, system + text(5, 9), head=50) == 50


@both
def test_a_snapshot_wanted_again_is_as_young_as_its_last_use(hybrid: bool) -> None:
    """Though it was no use to start from: four requests, two of them alike and at the same time."""
    cache = toy_cache(hybrid=hybrid, slots_max=2)
    alike, other = prompt(text(0, 50), end=50), text(1, 50)
    twins = [begin(cache, alike) for _ in range(2)]
    for index, (lease, toy) in enumerate(twins):
        toy.read(alike.tokens)
        assert lease.keep(alike.boundaries[0], toy.save, toy.logits())
        lease.close()
        if index == 0:
            serve(cache, other)
    serve(cache, text(2, 50))
    assert serve(cache, list(alike.tokens)) == 50


@both
def test_a_snapshot_lasts_as_long_as_the_best_of_what_it_was_kept_for(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid, slots_max=2)
    start = text(0, 50)
    requests = [prompt(start, end=50), prompt(start + text(1, 9), head=50)]
    for request, (lease, toy) in [(request, begin(cache, request)) for request in requests]:
        toy.read(start)
        assert lease.keep(request.boundaries[0], toy.save)
        lease.close()
    serve(cache, text(2, 50))
    serve(cache, text(3, 50))
    assert serve(cache, start + text(4, 9)) == 50


def test_what_would_free_no_bytes_is_not_given_up_for_them() -> None:
    """Without state and logits an older end is but a mark on rows that the newer one needs."""
    log = Log()
    cache = toy_cache(hybrid=False, bytes_max=200 * ROW_BYTES, log=log)
    tokens = text(0, 100)
    for length in (40, 70, 100):
        keep_without_logits(cache, tokens[:length])
    keep_without_logits(cache, text(1, 120))
    assert log.having("dropping") == [
        "Prefix cache: dropping the least recently used end snapshot (100 tokens)"
    ]
    keep_without_logits(cache, tokens)
    assert log.having("dropping")[1:] == [
        "Prefix cache: dropping the least recently used end snapshot (120 tokens)"
    ], "and not the end at 70, which it outgrows"


@both
def test_a_request_does_not_outgrow_itself(hybrid: bool) -> None:
    log = Log()
    cache = toy_cache(hybrid=hybrid, slots_max=4, log=log)
    serve(cache, text(0, 55))
    serve(cache, text(1, 60), opener=40, turn=50, end=60)
    serve(cache, text(2, 65))
    assert log.having("dropping") == [
        "Prefix cache: dropping the least recently used end snapshot (55 tokens)"
    ]


def test_a_turn_outlives_the_tool_loop_after_it() -> None:
    """Where the next user message makes the template drop the loop's thoughts, it starts there."""
    log = Log()
    cache = toy_cache(hybrid=True, slots_max=4, log=log)
    asked = text(0, 100)
    serve(cache, asked + text(99, 3), head=50, turn=100, end=103)
    loop = asked
    for step in range(1, 6):
        before = len(loop)
        loop = loop + text(step, 30)
        cached = serve(cache, loop + text(99, 3), turn=100, opener=len(loop), end=len(loop) + 3)
        assert cached == before
    dropped = log.having("dropping")
    assert not [line for line in dropped if "turn" in line or "head" in line]
    assert serve(cache, asked + text(7, 40)) == 100


@both
def test_of_two_forks_the_later_does_not_outgrow_the_earlier(hybrid: bool) -> None:
    """ignis joined them into one lineage, where the later superseded the earlier."""
    log = Log()
    cache = toy_cache(hybrid=hybrid, slots_max=3, log=log)
    trunk = text(0, 100)
    serve(cache, trunk)
    serve(cache, trunk + text(1, 50))
    serve(cache, trunk + text(2, 50))
    serve(cache, text(3, 60))
    assert log.having("dropping") == [
        "Prefix cache: dropping an outgrown end snapshot (100 tokens)"
    ]
    assert serve(cache, trunk + text(1, 50)) == 150
    assert serve(cache, trunk + text(2, 50)) == 150


@both
def test_a_conversation_moves_on_where_there_is_room_for_one_snapshot_only(hybrid: bool) -> None:
    tokens = text(0, 100)
    cache = toy_cache(hybrid=hybrid, bytes_max=snapshot_bytes(100 + 5 * 20))
    for turn in range(5):
        assert serve(cache, tokens) == (len(tokens) - 20 if turn else 0)
        tokens = tokens + text(turn, 20)


@both
def test_a_full_cache_goes_on_serving_new_conversations(hybrid: bool) -> None:
    """ninfer#251: reuse stopped for ever once the catalogue was full. All begin with one token."""
    cache = toy_cache(hybrid=hybrid, bytes_max=snapshot_bytes(130), gain_min=64)
    for seed in range(1, 40):
        tokens = [1, *text(seed, 99)]
        serve(cache, tokens, head=70, end=100)
        assert serve(cache, tokens + text(0, 20), head=70, end=120) >= 70


# --- the budget ---


@both
def test_an_oversize_prompt_is_not_kept_evicts_nothing_and_says_so_once(hybrid: bool) -> None:
    log = Log()
    cache = toy_cache(hybrid=hybrid, bytes_max=snapshot_bytes(100), log=log)
    serve(cache, text(0, 60))
    kept = cache.bytes_kept
    serve(cache, text(1, 300), turn=290, end=300)
    assert cache.bytes_kept == kept
    assert len(log.warnings) == 1
    assert "a 300-token prompt needs 0 MiB" in log.warnings[0]
    assert serve(cache, text(0, 60)) == 60


def test_a_prompt_is_too_long_by_a_byte() -> None:
    for bytes_max, kept in (
        (50 * ROW_BYTES + STATE_BYTES, 1),
        (50 * ROW_BYTES + STATE_BYTES - 1, 0),
    ):
        log = Log()
        cache = toy_cache(bytes_max=bytes_max, log=log)
        keep_without_logits(cache, text(0, 50))
        assert (cache.slot_count, len(log.warnings)) == (kept, 1 - kept)


def test_the_head_of_an_oversize_prompt_is_kept() -> None:
    cache = toy_cache(bytes_max=snapshot_bytes(100))
    serve(cache, text(0, 50) + text(1, 300), head=50, end=350)
    assert serve(cache, text(0, 50) + text(2, 300), head=50, end=350) == 50


def test_nothing_is_given_up_for_what_does_not_fit_beside_what_is_in_use() -> None:
    log = Log()
    cache = toy_cache(bytes_max=snapshot_bytes(150) + STATE_BYTES, log=log)
    serve(cache, text(0, 40))
    running = prompt(text(1, 100), end=100)
    lease, toy = begin(cache, running)
    toy.read(running.tokens)
    assert lease.keep(running.boundaries[0], toy.save)
    serve(cache, text(2, 60))
    assert log.lines[-1] == (
        "Prefix cache: not saved, no room for 60 tokens beside the snapshots in use"
    )
    lease.close()
    assert serve(cache, text(0, 40)) == 40, "was not given up in vain"


def test_what_a_running_request_holds_is_shared_and_not_stored_again() -> None:
    """Where there is room for little more than the one."""
    cache = toy_cache(hybrid=False, bytes_max=snapshot_bytes(190, hybrid=False))
    shared = text(0, 90)
    running = prompt(shared + text(1, 10), end=100)
    lease, toy = begin(cache, running)
    toy.read(running.tokens)
    assert lease.keep(running.boundaries[0], toy.save)
    serve(cache, shared + text(2, 12))
    assert serve(cache, shared + text(2, 12) + text(3, 5)) == 102
    lease.close()


def test_what_is_shared_with_what_may_have_to_go_is_not_counted_on() -> None:
    cache = toy_cache(hybrid=False, bytes_max=200 * ROW_BYTES + 2 * LOGITS_BYTES)
    running = prompt(text(0, 100), end=100)
    lease, toy = begin(cache, running)
    toy.read(running.tokens)
    assert lease.keep(running.boundaries[0], toy.save)
    shared = text(1, 90)
    serve(cache, shared + text(2, 10))
    assert serve(cache, shared + text(3, 15)) == 90
    assert serve(cache, shared + text(2, 10)) == 100, "was not given up in vain"
    lease.close()


@both
def test_logits_that_come_later_must_fit_as_well(hybrid: bool) -> None:
    start, other = text(0, 50), text(1, 50)
    state = STATE_BYTES if hybrid else 0
    cache = toy_cache(hybrid=hybrid, bytes_max=100 * ROW_BYTES + 2 * state + LOGITS_BYTES)
    keep_without_logits(cache, start)
    serve(cache, other)
    assert cache.bytes_kept == cache.bytes_max
    serve(cache, start)
    assert serve(cache, start) == 50
    assert serve(cache, other) < 50


def test_splitting_an_edge_takes_room_for_a_moment() -> None:
    """That of its largest tensor: here 12 of the 16 bytes of a row."""
    cache = toy_cache(hybrid=False, bytes_max=210 * ROW_BYTES + 3 * LOGITS_BYTES)
    older, split = text(0, 100), text(1, 100)
    serve(cache, older)
    serve(cache, split)
    serve(cache, split[:50] + text(2, 5))
    assert serve(cache, split) == 100
    assert serve(cache, older) == 0


@both
def test_twins_that_keep_the_same_end_evict_nothing_for_the_second(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid, bytes_max=2 * snapshot_bytes(50, hybrid=hybrid))
    serve(cache, text(1, 50))
    alike = prompt(text(0, 50), end=50)
    twins = [begin(cache, alike) for _ in range(2)]
    for lease, toy in twins:
        toy.read(alike.tokens)
        assert lease.keep(alike.boundaries[0], toy.save, toy.logits())
        lease.close()
    assert cache.slot_count == 2


@both
def test_a_leased_prefix_stays_until_it_is_restored(hybrid: bool) -> None:
    """Whatever comes in between: a longer turn of the same conversation, and floods of others."""
    cache = toy_cache(hybrid=hybrid, bytes_max=snapshot_bytes(200) + 2 * STATE_BYTES)
    tokens = text(0, 60)
    serve(cache, tokens)
    lease = cache.lease(prompt(tokens + text(1, 10)))
    serve(cache, tokens + text(2, 30))
    for seed in range(10, 20):
        serve(cache, text(seed, 60))
    assert lease.offset == 60
    toy = Toy(hybrid=hybrid)
    toy.restore(lease.snapshots)
    cold = Toy(hybrid=hybrid)
    cold.read(tokens)
    assert toy.logits().tobytes() == cold.logits().tobytes()
    lease.close()
    cache.check()


def test_a_lease_into_the_middle_of_an_edge_survives_its_being_split() -> None:
    cache = toy_cache(hybrid=False)
    tokens = text(0, 100)
    serve(cache, tokens)
    early, late = (cache.lease(prompt(tokens[:at] + text(1, 5))) for at in (30, 80))
    serve(cache, tokens[:50] + text(2, 50))
    for lease, offset in ((early, 30), (late, 80)):
        assert lease.offset == offset
        toy = Toy(hybrid=False)
        toy.restore(lease.snapshots)
        assert toy.keys.ravel().tolist() == tokens[:offset]
        lease.close()
        cache.check()


def test_rows_without_a_slot_are_only_there_for_those_who_hold_them() -> None:
    cache = toy_cache(hybrid=False, slots_max=1)
    tokens = text(0, 50)
    serve(cache, tokens)
    longer = prompt(tokens + text(1, 20), end=70)
    lease, _ = begin(cache, longer)
    with pytest.raises(OSError, match="gone"):
        lease.keep(longer.boundaries[0], failing)  # whose slot was the one at 50
    cache.check()
    assert serve(cache, tokens + text(2, 20), end=70) == 0
    lease.close()
    cache.check()


def test_a_fork_that_leads_nowhere_any_more_goes_when_its_lease_leaves_it() -> None:
    cache = toy_cache(hybrid=False, slots_max=2)
    shared = text(0, 50)
    serve(cache, shared + text(1, 50))
    serve(cache, shared + text(2, 50))
    request = prompt(shared[:30] + text(3, 20), end=50)
    lease, toy = begin(cache, request)
    for seed in (4, 5):
        serve(cache, text(seed, 50))
    toy.read(request.tokens[30:])
    assert lease.keep(request.boundaries[0], toy.save)
    cache.check()
    lease.close()


def failing(start: int, end: int) -> Snapshot:
    raise OSError("the device is gone")


@both
def test_a_save_that_fails_keeps_nothing_and_leaks_nothing(hybrid: bool) -> None:
    cache = toy_cache(hybrid=hybrid)
    request = prompt(text(0, 50), head=20, end=50)
    lease, toy = begin(cache, request)
    toy.read(request.tokens[:20])
    with pytest.raises(OSError, match="gone"):
        lease.keep(request.boundaries[0], failing)
    cache.check()
    assert (cache.bytes_kept, cache.slot_count) == (0, 0)
    assert lease.keep(request.boundaries[0], toy.save), "the request goes on"
    lease.close()
    assert cache.bytes_kept == 20 * ROW_BYTES + (STATE_BYTES if hybrid else 0)


def test_off_keeps_nothing_and_says_nothing() -> None:
    log = Log()
    cache = toy_cache(bytes_max=0, log=log)
    for _ in range(2):
        assert serve(cache, text(0, 100), head=50, end=100) == 0
    lease, toy = begin(cache, prompt(text(0, 9), end=9))
    toy.read(text(0, 9))
    assert not lease.keep(Boundary(9, END), toy.save)
    assert (cache.bytes_kept, cache.slot_count) == (0, 0)
    assert log.lines + log.warnings == []


LAYERS, HEADS, WIDTH = 2, 4, 128
BIG_ROW_BYTES = LAYERS * HEADS * WIDTH * 4


def big_snapshot(start: int, end: int) -> Snapshot:
    shape = (HEADS, end - start, WIDTH)
    return Snapshot(
        start, end, {f"{n}.keys": np.ones(shape, np.float32) for n in range(LAYERS)}, {}
    )


def one_shots() -> Iterator[Prompt]:
    """Sharing starts of all lengths, so that edges are split and split again."""
    draw = np.random.default_rng(7)
    for seed in count(1):
        shared, own = (int(draw.integers(1, most)) for most in (500, 300))
        tokens = text(seed % 3, 500)[:shared] + text(seed, own)
        yield Prompt(tuple(tokens), (Boundary(len(tokens), END),))


def test_the_budget_bounds_the_memory_that_is_really_held() -> None:
    """https://github.com/ikawrakow/ik_llama.cpp/issues/2320: it was enforced after the fact."""
    bytes_max = 900 * BIG_ROW_BYTES
    cache = PrefixCache(
        bytes_max=bytes_max,
        slots_max=None,
        gain_min=1,
        row_bytes=BIG_ROW_BYTES,
        state_bytes=0,
        log=lambda line: None,
        warn=lambda line: None,
    )
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _, request in zip(range(300), one_shots(), strict=False):
            tracemalloc.reset_peak()
            lease = cache.lease(request)
            lease.keep(request.boundaries[0], big_snapshot)
            lease.close()
            _, peak = tracemalloc.get_traced_memory()
            # Python's own objects, token ids among them, are not what the budget is about.
            assert peak - before <= bytes_max + 200_000
    finally:
        tracemalloc.stop()
    assert cache.bytes_kept > bytes_max / 2
    cache.check()
