"""llm-comply, unmodified, against a house: what each API's specification asks of a server.

The engine is the real one; what the model says is scripted, for each test what a model would have
to say there, since the tests ask for words and calls that none of random weights comes up with.
"""

import tempfile
from pathlib import Path
from typing import Any

from tests.server.house import House, open_house, serving

FORMATS = {
    "openai-chat": "openai_chat.json",
    "open-responses": "openresponses.json",
    "anthropic": "anthropic.json",
}
# By what is before the slash some tests tell whether a model thinks; the server does not look.
MODEL = "gpt-5-claude-sonnet-4/tiny:1m"
CALL = '<tool_call>{"name": "get_weather", "arguments": {"location": "San Francisco"}}</tool_call>'
THOUGHT = "15 * 37 = 555.</think>It is 555."


def comply(format: str) -> list[Any]:
    """llm-comply's results, test by test."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_house(Path(folder)) as house,
        serving(house.residence) as url,
    ):
        return _run(format, house, f"{url}/v1")


def _run(format: str, house: House, url: str) -> list[Any]:
    import llm_comply
    from llm_comply.config import ComplianceConfig
    from llm_comply.runner import TestRunner
    from llm_comply.schema import SpecLoader
    from llm_comply.tests import get_tests

    assert llm_comply.__file__ is not None
    spec = SpecLoader(str(Path(llm_comply.__file__).parent / "specs" / FORMATS[format]))
    tests = get_tests(format)
    runner = TestRunner(ComplianceConfig(base_url=url, api_key="any", model=MODEL), tests, spec)
    results = []
    for test in tests:
        house.scripts.clear()
        house.say(_words(test.id))
        results.append(runner.run_one(test))
    return results


def _words(test_id: str) -> str:
    if test_id.endswith("tool-calling"):
        return CALL
    return THOUGHT if "reasoning" in test_id or "thinking" in test_id else "One, two, three."
