"""Replies held to a grammar, in the engine: whatever becomes of the device and of the others."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from flm.core.event import Failed, FinishReason
from flm.core.request import Request, SamplingParams
from flm.errors import GrammarFailed
from flm.text.lark import Lark
from tests.engine.rig import CONVERSATION, STATEFUL, Rig, layouts, request_of
from tests.pure.any_reply import grammars

SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"enum": ["red", "green", {"dark": True}, 7]},
    "minItems": 3,
    "maxItems": 5,
}
LARK = Lark()
HELD = grammars().compile(LARK.source(LARK.json(SCHEMA)))
CHOSEN = SamplingParams(temperature=1, seed=4)
REQUEST: dict[str, Any] = {"sampling": CHOSEN, "grammar": HELD, "ignore_eos": False}


def held(name: str, **changes: Any) -> Request:
    request = request_of(name, CONVERSATION, max_tokens=100)
    return replace(request, **{**REQUEST, **changes})


@layouts
def test_a_held_reply_goes_on_where_the_device_was_lost(tmp_path: Path, layout: Any) -> None:
    calm = Rig(tmp_path, layout=layout)
    calm.run(held("a"))
    jsonschema.validate(json.loads(calm.text("a")), SCHEMA)
    for generated in range(1, len(calm.tokens("a")), 4):
        rig = Rig(tmp_path, layout=layout)
        rig.engine.submit(held("a"))
        rig.until(lambda rig=rig, length=generated: len(rig.tokens("a")) == length)
        rig.uses_left = 0
        rig.run()
        assert rig.text("a") == calm.text("a")
        assert rig.finished("a").reason is FinishReason.STOP


def test_a_reply_that_is_cut_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.run(held("a", max_tokens=4))
    assert rig.finished("a").reason is FinishReason.LENGTH
    assert len(rig.tokens("a")) == 4


def test_held_and_free_replies_share_passes_and_not_each_others_tokens(tmp_path: Path) -> None:
    def free(name: str) -> Request:
        return replace(request_of(name, CONVERSATION, max_tokens=30), sampling=CHOSEN)

    alone, rig = (Rig(tmp_path, layout=STATEFUL) for _ in range(2))
    alone.run(free("b"))
    rig.run(held("a"), free("b"), held("c"))
    assert rig.tokens("b") == alone.tokens("b")
    assert rig.text("a") == rig.text("c"), "of the same seed"
    jsonschema.validate(json.loads(rig.text("a")), SCHEMA)


def test_what_is_kept_of_the_prompt_knows_nothing_of_the_grammar(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.run(held("a"))
    rig.run(replace(held("b"), grammar=None, max_tokens=3))
    assert rig.finished("b").usage.cached_tokens == len(CONVERSATION.tokens)


class Broken:
    """Gives up after two tokens."""

    def open(self) -> "Broken":
        return Broken()

    def take(self, tokens: Sequence[int]) -> None:
        self.taken = getattr(self, "taken", 0) + len(tokens)

    def allowed(self) -> bytes:
        if self.taken == 2:
            raise GrammarFailed("it is too much", fix="ask for less")
        return b"\xff" * 256


def test_a_grammar_that_fails_ends_its_own_request(tmp_path: Path) -> None:
    rig, alone = Rig(tmp_path), Rig(tmp_path)
    free = replace(request_of("b", CONVERSATION, max_tokens=20), sampling=CHOSEN)
    rig.run(held("a", grammar=Broken()), free)
    alone.run(free)
    ending = rig.ending("a")
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, GrammarFailed)
    assert len(rig.tokens("a")) == 2
    assert rig.tokens("b") == alone.tokens("b")
