"""A prefix cache that keeps every boundary and remembers every prompt, to be explained."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.finding import Fate, FateKind, Finding
from flm.core.prompt import BoundaryKind
from flm.prefix.boundaries import BoundaryFinder
from flm.prefix.explain import Explanation, explain
from flm.prefix.ghosts import Ghosts, found
from flm.prefix.trie import TOKEN_BYTES
from flm.prefix.volatility import Volatility
from flm.text.template import CHATML, ChatTemplate
from flm.text.tokenizer import Tokenizer
from tests.pure.vocabularies import FIXTURE

NOW = datetime(2026, 3, 1, 12)
TEMPLATES = Path(__file__).resolve().parents[1] / "fixtures" / "templates"
TOKENIZER = Tokenizer.load(FIXTURE)
# Calls as JSON text, thoughts dropped once a newer user message stands there.
LOOPS = """\
{%- set last = namespace(user=-1) -%}
{%- for m in messages if m.role == 'user' -%}{% set last.user = messages.index(m) %}{%- endfor -%}
{%- for t in tools or [] %}{{ t | tojson + '\\n' }}{% endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.reasoning_content and loop.index0 > last.user -%}
{{- '<think>' + m.reasoning_content + '</think>' -}}
{%- endif -%}
{{- m.content -}}
{%- for c in m.tool_calls or [] -%}
{{- '<call>' + c.function.name + ' ' + (c.function.arguments | tojson) + '</call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
SOURCES = {
    "chatml": CHATML,
    "loops": LOOPS,
    **{path.stem: path.read_text() for path in TEMPLATES.glob("*.jinja")},
}


class Reader:
    """`send` says what is explained of a request, then keeps its boundaries, all but `skips`."""

    def __init__(
        self, source: str, tokenizer: Tokenizer, *, gain_min: int = 8, ghosts: Ghosts | None = None
    ) -> None:
        self.template = ChatTemplate(source, bos_token="<|im_start|>", eos_token="<|im_end|>")
        self.finder = BoundaryFinder(self.template, tokenizer)
        self.ghosts = Ghosts(2**24) if ghosts is None else ghosts
        self.kept: set[tuple[str, bytes]] = set()
        self.skips: dict[BoundaryKind, FateKind] = {}
        self.volatility = Volatility()
        self.now = NOW
        self._tokenizer = tokenizer
        self._gain_min = gain_min

    def send(self, conversation: Conversation, domain: str = "") -> Explanation | None:
        text = self.template.render(conversation, now=self.now)
        finding = self.look(conversation, domain)
        explanation = explain(conversation, text, finding, self._tokenizer)
        prompt = finding.prompt
        self.volatility.note(finding, explanation)
        self.ghosts.see(prompt)
        self.ghosts.note_read(prompt, len(prompt.tokens))
        for boundary in prompt.boundaries:
            tokens = prompt.packed[: boundary.offset * TOKEN_BYTES]
            if kind := self.skips.get(boundary.kind):
                self.ghosts.note(domain, tokens, Fate(kind, boundary.offset, boundary.kind))
            else:
                self.kept.add((domain, tokens))
        return explanation

    def look(self, conversation: Conversation, domain: str = "") -> Finding:
        prompt = replace(self.finder.find(conversation, now=self.now), domain=domain)
        whole = [kept for of, kept in self.kept if of == domain and prompt.packed.startswith(kept)]
        offset = max((len(kept) // TOKEN_BYTES for kept in whole), default=0)
        sightings = [self.ghosts.find(prompt)]
        return found(
            prompt, offset=offset, tier="memory", gain_min=self._gain_min, sightings=sightings
        )

    def evict(self, kind: BoundaryKind) -> None:
        """All that was kept goes."""
        for domain, tokens in self.kept:
            self.ghosts.note(
                domain, tokens, Fate(FateKind.EVICTED, len(tokens) // TOKEN_BYTES, kind)
            )
        self.kept.clear()


def chat(*messages: Message, tools: tuple[Mapping[str, Any], ...] = ()) -> Conversation:
    return Conversation(messages, tools)


def system(text: str) -> Message:
    return Message("system", text)


def user(text: str) -> Message:
    return Message("user", text)


def says(text: str | None, *, thought: str | None = None, calls: str = "") -> Message:
    """`calls` are the arguments of a call of `look`."""
    return Message("assistant", text, thought, (ToolCall("1", "look", calls),) if calls else ())


def result(text: str) -> Message:
    return Message("tool", text, tool_call_id="1", name="look")


def tool(name: str, description: str = "reads what it says") -> dict[str, Any]:
    path = {"type": "string", "description": f"the path to {name}"}
    parameters = {"type": "object", "properties": {"path": path}, "required": ["path"]}
    function = {"name": name, "description": f"{name} {description}", "parameters": parameters}
    return {"type": "function", "function": function}


def reader(name: str, *, source: str | None = None, **options: Any) -> Reader:
    return Reader(SOURCES[name] if source is None else source, TOKENIZER, **options)
