"""Which snapshot goes when room lacks, and which must not."""

from tests.pure.toy import (
    ROW_BYTES,
    Log,
    begin,
    both,
    keep_without_logits,
    prompt,
    serve,
    snapshot_bytes,
    text,
    toy_cache,
)


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
    assert log.having("dropping an outgrown end snapshot")
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
