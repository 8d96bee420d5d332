"""Coding agents as npm has them, against the real engine on a tiny hybrid model whose words are
scripted: each gets where it wants to, and little that was read before is read again.
"""

import shutil
from pathlib import Path

import pytest

from bench.apps import APPS, converse, told
from bench.hermes import at_least, model_of, settings_for
from bench.shapes import TINY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="needs node"),
]


@pytest.fixture(scope="module")
def model() -> Path:
    return model_of(TINY, settings_for())


@pytest.mark.parametrize("name", APPS)
def test_an_app_gets_through_and_reads_only_what_is_new(name: str, model: Path) -> None:
    settings = settings_for()
    with told(APPS[name], model, settings) as (served, tell):
        converse(served, tell)
    for least, kept in at_least(served.asked):
        assert kept > least - settings.prefix_min_gain
