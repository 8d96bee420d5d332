"""What each API's specification asks of a server, by llm-comply."""

from collections.abc import Iterator

import pytest

from flm.core.picture import is_picture
from tests.server.comply import FORMATS, Spoken, comply, spoken

pytest.importorskip("llm_comply")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

ADVISORY = ("compact-response",)  # an endpoint that servers may be without


@pytest.fixture(scope="module")
def server() -> Iterator[Spoken]:
    with spoken() as found:
        yield found


@pytest.mark.parametrize("format", FORMATS)
def test_all_that_a_specification_asks_is_done(format: str, server: Spoken) -> None:
    results = comply(format, server)
    left = {
        each.id: [each.status.value, *each.errors, *each.warnings]
        for each in results
        if each.status.value != "passed" or (each.warnings and each.id not in ADVISORY)
    }
    assert left == {}
    assert len(results) == {"openai-chat": 9, "open-responses": 13, "anthropic": 9}[format]
    assert any(map(is_picture, (token for asked in server.served.asked for token in asked.tokens)))
    server.served.asked.clear()
