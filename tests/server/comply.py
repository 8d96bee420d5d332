"""llm-comply, unmodified, against a server: what each API's specification asks of one.

All is the real thing, a tiny model that sees among it; what the model says is scripted, for each
test what a model would have to say there, since the tests ask for words and calls that none of
random weights comes up with.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scripted import Served, serve_scripted
from flm.settings import Settings
from tests.server.seeing import seeing_folder

FORMATS = {
    "openai-chat": "openai_chat.json",
    "open-responses": "openresponses.json",
    "anthropic": "anthropic.json",
}
NAME = "tiny"
# By what is before the slash some tests tell whether a model thinks; the server does not look.
MODEL = f"gpt-5-claude-sonnet-4/{NAME}"
CALL = '<tool_call>{"name": "get_weather", "arguments": {"location": "San Francisco"}}</tool_call>'
THOUGHT = "15 * 37 = 555.</think>It is 555."
# Pictures, tools, and a thought that the prompt opens when asked for one.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content or [] %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% endif %}{% endif %}"""


@dataclass
class Spoken:
    """A server, and what its model says next."""

    served: Served
    words: str = ""


@contextmanager
def spoken() -> Iterator[Spoken]:
    with tempfile.TemporaryDirectory() as folder:
        model = seeing_folder(Path(folder) / NAME, template=TEMPLATE)
        settings = Settings(
            model_path=Path(folder) / "flm", lanes=2, prefix_cache_mb=64, prefix_disk_mb=0
        )
        with serve_scripted(model, settings, lambda prompt: found.words) as served:
            found = Spoken(served)
            yield found


def comply(format: str, spoken: Spoken) -> list[Any]:
    """llm-comply's results, test by test."""
    import llm_comply
    from llm_comply.config import ComplianceConfig
    from llm_comply.runner import TestRunner
    from llm_comply.schema import SpecLoader
    from llm_comply.tests import get_tests

    assert llm_comply.__file__ is not None
    spec = SpecLoader(str(Path(llm_comply.__file__).parent / "specs" / FORMATS[format]))
    tests = get_tests(format)
    url = f"{spoken.served.url}/v1"
    runner = TestRunner(ComplianceConfig(base_url=url, api_key="any", model=MODEL), tests, spec)
    results = []
    for test in tests:
        spoken.words = _words(test.id)
        results.append(runner.run_one(test))
    return results


def _words(test_id: str) -> str:
    if test_id.endswith("tool-calling"):
        return CALL
    return THOUGHT if "reasoning" in test_id or "thinking" in test_id else "One, two, three."
