"""Open WebUI as PyPI has it, against the real engine on a tiny hybrid model whose words are
scripted: it gets where it wants to, and little that was read before is read again.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.hermes import at_least, model_of, settings_for
from bench.shapes import TINY
from bench.webui import CONNECTIONS, WORD, converse, embed, gives_way, interrupt, webui
from tests.server.encoder import with_encoder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="Open WebUI wants Python 3.11 or 3.12"),
]


@pytest.mark.parametrize("by", CONNECTIONS)
def test_open_webui_gets_through_and_reads_only_what_is_new(by: str, tmp_path: Path) -> None:
    model = model_of(TINY, settings_for())
    settings = replace(settings_for(), model_path=with_encoder(tmp_path).model_path)
    with webui(model, settings, by) as room:
        assert model.stem in room.models
        converse(room)
        assert gives_way(room) is (by == "openai"), "Ollama's connection knows no other names"
        for least, kept in at_least(room.main()):
            assert kept > least - settings.prefix_min_gain
        assert interrupt(room) < len(WORD.split()) * 1000  # of twice as many
        embed(room)
