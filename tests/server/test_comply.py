"""What each API's specification asks of a server, by llm-comply."""

import pytest

from tests.server.comply import FORMATS, comply

pytest.importorskip("llm_comply")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

ADVISORY = ("compact-response",)  # an endpoint that servers may be without


@pytest.mark.parametrize("format", FORMATS)
def test_all_that_a_specification_asks_is_done_but_pictures(format: str) -> None:
    results = comply(format)
    left = {
        each.id: [each.status.value, *each.errors, *each.warnings]
        for each in results
        if each.status.value != "passed" or (each.warnings and each.id not in ADVISORY)
    }
    images = [name for name in left if name.endswith("image-input")]
    assert len(images) == 1
    assert "400" in left.pop(images[0])[1]
    assert left == {}
    assert len(results) == {"openai-chat": 9, "open-responses": 13, "anthropic": 9}[format]
