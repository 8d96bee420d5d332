"""What is reused and what is kept: as users were promised, and others were reported not to do."""

from collections import Counter

import pytest

from flm.prefix import ghosts
from flm.prefix.lease import Manners
from tests.pure.toy import (
    LOGITS_BYTES,
    ROW_BYTES,
    STATE_BYTES,
    Log,
    begin,
    both,
    prompt,
    serve,
    snapshot_bytes,
    text,
    toy_cache,
)


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


def test_a_fork_is_found_though_the_rows_that_showed_it_are_gone() -> None:
    cache = toy_cache(hybrid=True, bytes_max=snapshot_bytes(60), ghosts_max=2**20)
    shared = text(1, 40)
    for seed in (2, 3, 4):
        resumed = serve(cache, shared + text(seed, 10), forks=True)
        assert resumed == (40 if seed == 4 else 0)
        if seed == 2:
            serve(cache, text(9, 55))  # fills memory, so that the first is given up
            assert cache.look(prompt([*shared, 1], end=41)).offset == 0


@pytest.mark.parametrize("manners", [Manners.USUAL, Manners.MODEST])
def test_a_lease_looks_its_prompt_up_once_in_each_trie(
    monkeypatch: pytest.MonkeyPatch, manners: Manners
) -> None:
    """Prompts have tens of thousands of tokens, and somebody waits."""
    cache, looked_up = toy_cache(hybrid=True, ghosts_max=2**20), Counter[str]()
    serve(cache, text(0, 90) + text(1, 30), head=90, end=120)
    find, match = cache.trie.find, ghosts._match
    monkeypatch.setattr(
        cache.trie, "find", lambda *given: looked_up.update(["trie"]) or find(*given)
    )
    monkeypatch.setattr(
        ghosts, "_match", lambda *given: looked_up.update(["ghosts"]) or match(*given)
    )
    cache.lease(prompt(text(0, 90) + text(2, 30), end=120), manners=manners)
    assert looked_up == {"trie": 1, "ghosts": 1}
