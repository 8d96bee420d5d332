"""The Hermes agent as it is on PyPI, against the real engine on a tiny hybrid model whose words are
scripted: it gets where it wants to, and nothing that was read before is read again.
"""

from pathlib import Path

import pytest

from bench.hermes import SCENES, at_least, hermes, model_of, settings_for
from bench.shapes import TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REQUESTS_MIN = {"one-shot": 1, "tool-loop": 2, "sub-agents": 5, "second-turn": 2, "gateway": 4}


@pytest.fixture(scope="module")
def model() -> Path:
    return model_of(TINY, settings_for())


@pytest.mark.parametrize("scene", SCENES)
def test_an_agent_gets_through_and_reads_only_what_is_new(scene: str, model: Path) -> None:
    with hermes(model, settings_for()) as agent:
        SCENES[scene](agent)
        asked = agent.served.asked
    assert len(asked) >= REQUESTS_MIN[scene]
    for least, kept in at_least(asked):
        assert kept >= least


def test_a_second_turn_reads_a_tenth_at_most(model: Path) -> None:
    with hermes(model, settings_for()) as agent:
        SCENES["second-turn"](agent)
        first, *_, second = [each for each in agent.served.asked if "<tools>" in each.text]
    assert len(second.tokens) - second.cached <= len(first.tokens) / 10
