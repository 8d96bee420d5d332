"""What is read ahead pushes nothing out, and so may find no room."""

from flm.prefix.lease import Manners
from tests.pure.toy import (
    LOGITS_BYTES,
    ROW_BYTES,
    STATE_BYTES,
    Toy,
    prompt,
    serve,
    text,
    toy_cache,
)


def test_an_edge_that_stays_is_reckoned_with_when_it_would_be_split() -> None:
    kept = text(1, 24)
    cache = toy_cache(bytes_max=28 * ROW_BYTES + 2 * STATE_BYTES + LOGITS_BYTES)
    serve(cache, kept, end=24)
    ahead = prompt(kept[:3], end=3)
    lease = cache.lease(ahead, manners=Manners.MODEST)
    toy = Toy(hybrid=True)
    toy.read(ahead.tokens)
    assert not lease.keep(ahead.boundaries[0], toy.save)
    lease.close()
    cache.check()
    assert serve(cache, kept, end=24) == 24
