"""What is read again is explained: by what differs and where, or by what became of it."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from flm.cli.drawing import draw_explanation
from flm.core.finding import Fate, FateKind
from flm.core.prompt import BoundaryKind
from flm.prefix.boundaries import text_prompt
from flm.prefix.changes import Change
from flm.prefix.explain import Explanation, explain
from flm.prefix.ghosts import Ghosts, found
from flm.server.routes.prefix_replies import difference
from flm.text.tokenizer import Tokenizer
from tests.pure.explained import (
    LOOPS,
    SOURCES,
    TOKENIZER,
    Reader,
    chat,
    reader,
    result,
    says,
    system,
    tool,
    user,
)
from tests.pure.vocabularies import FIXTURE

WITH_TOOLS = ["loops", "tools_first", "dated"]
WITH_CALLS = ["loops", "tools_first"]
RULES = "Be brief. Use what the tools say, and say so when you do not know the answer. " * 3
TOOLS = tuple(tool(name) for name in ("look", "find", "write"))


def sure(explanation: Explanation | None) -> Explanation:
    assert explanation, "nothing explained"
    return explanation


# --- differences ---


@pytest.mark.parametrize("name", SOURCES)
def test_a_clock_in_the_system_prompt_is_named_with_its_place(name: str) -> None:
    """https://github.com/open-webui/open-webui/issues/28527"""
    here = reader(name)
    for number, clock in enumerate(("09:41:07", "09:41:52", "10:02:33")):
        text = f"{RULES}Current time: {clock}.\n{RULES}"
        explanation = here.send(chat(system(text), user("Why?")))
        if number:
            found = sure(explanation)
            assert found.change is Change.TIME
            assert str(found.place) == "messages[0].content"
            assert text[found.place.offset :].startswith(clock[text_at(text, found, clock) :])
            assert f"messages[0].content +{found.place.offset}" in found.line()
            assert "time" in found.advice
            assert "last user message" in found.advice
            assert clock[0] in found.before + found.ours


def text_at(text: str, explanation: Explanation, clock: str) -> int:
    """How far into the clock."""
    return explanation.place.offset - text.index(clock)


def test_a_date_that_the_template_writes_is_the_templates() -> None:
    here = reader("dated")
    conversation = chat(system(RULES), user("Why?"))
    here.send(conversation)
    here.now += timedelta(days=1)
    found = sure(here.send(conversation))
    assert found.change is Change.TIME
    assert str(found.place) == "template"
    assert "chat_template_kwargs" in found.advice


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_reordered_tools_are_told_from_other_tools(name: str) -> None:
    here = reader(name)
    assert here.send(chat(system(RULES), user("Why?"), tools=TOOLS)) is None
    turned = sure(here.send(chat(system(RULES), user("Why?"), tools=TOOLS[::-1])))
    assert turned.change is Change.REORDERED_TOOLS
    assert str(turned.place) == "tools[0].function.name"

    here = reader(name)
    here.send(chat(system(RULES), user("Why?"), tools=TOOLS))
    fewer = sure(here.send(chat(system(RULES), user("Why?"), tools=TOOLS[1:])))
    assert fewer.change is Change.OTHER
    assert fewer.place.whole == "tools[0]"


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_changed_tool_has_its_json_path(name: str) -> None:
    here = reader(name)
    here.send(chat(system(RULES), user("Why?"), tools=TOOLS))
    function = {**TOOLS[1]["function"]}
    path = {"type": "string", "description": "the path as of 2026-03-01"}
    function["parameters"] = {**function["parameters"], "properties": {"path": path}}
    changed = (TOOLS[0], {**TOOLS[1], "function": function}, TOOLS[2])
    found = sure(here.send(chat(system(RULES), user("Why?"), tools=changed)))
    where = "tools[1].function.parameters.properties.path.description"
    assert str(found.place) == where
    assert found.place.offset == len("the path ")
    assert found.change is Change.OTHER
    assert where in found.line()
    path["description"] = "the path as of 2026-03-02"
    assert sure(here.send(chat(system(RULES), user("Why?"), tools=changed))).change is Change.TIME


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_reordered_keys_of_a_tool_are_told(name: str) -> None:
    here = reader(name)
    here.send(chat(system(RULES), user("Why?"), tools=TOOLS))
    function = TOOLS[0]["function"]
    turned = {key: function[key] for key in ("name", "parameters", "description")}
    changed = ({**TOOLS[0], "function": turned}, *TOOLS[1:])
    found = sure(here.send(chat(system(RULES), user("Why?"), tools=changed)))
    assert found.change is Change.REORDERED_KEYS
    assert found.place.whole == "tools[0]"


LOOP = (
    says(None, thought="I look at it first, as I was told.", calls='{"path": "a.py", "deep": 3}'),
    result("It says that there are seven of them, and that is all there is."),
)
ASKED = (system(RULES), user("What is it that this one says?"))


@pytest.mark.parametrize("name", WITH_CALLS)
def test_arguments_that_were_serialised_anew_are_told(name: str) -> None:
    """https://github.com/stanfordnlp/dspy/issues/10216"""
    here = reader(name)
    assert here.send(chat(*ASKED, *LOOP, tools=TOOLS)) is None
    turned = says(None, thought=LOOP[0].reasoning, calls='{"deep": 3, "path": "a.py"}')
    found = sure(here.send(chat(*ASKED, turned, LOOP[1], *LOOP, tools=TOOLS)))
    assert found.change is Change.REORDERED_KEYS
    assert found.place.whole == "messages[2].tool_calls[0].arguments"
    assert found.place.plain == found.place.whole, "keys of arguments are the user's"
    assert "order" in found.advice


def test_arguments_written_with_other_spaces_are_told() -> None:
    here = Reader(LOOPS.replace(" | tojson", " | string"), TOKENIZER)
    call = '["a.py", "b.py"] and the others'
    here.send(chat(*ASKED, says(None, calls=call), LOOP[1]))
    spaced = says(None, calls=call.replace(", ", ","))
    found = sure(here.send(chat(*ASKED, spaced, *LOOP[1:], user("And?"))))
    assert found.change is Change.WHITESPACE


@pytest.mark.parametrize("name", WITH_CALLS)
def test_thoughts_that_a_new_user_message_drops_are_told(name: str) -> None:
    """https://github.com/QwenLM/Qwen3.8/issues/131"""
    here = reader(name)
    assert here.send(chat(*ASKED, tools=TOOLS)) is None
    assert here.send(chat(*ASKED, *LOOP, tools=TOOLS)) is None
    assert here.send(chat(*ASKED, *LOOP, *LOOP, tools=TOOLS)) is None
    closed = (*ASKED, *LOOP, *LOOP, says("There are seven."))
    found = sure(here.send(chat(*closed, user("Tell me a joke."), tools=TOOLS)))
    assert found.change is Change.RERENDERED
    assert found.fate is None, "the turn was kept"
    assert found.place.message in (1, 2)


@pytest.mark.parametrize("name", SOURCES)
def test_an_edited_early_message_is_told(name: str) -> None:
    here = reader(name)
    first = chat(
        system(RULES),
        user("Tell me about the cat in the house, please."),
        says("The cat sits where it wants, and nobody minds."),
        user("And what about the dog that came later?"),
        says("The dog waits at the door until somebody comes."),
        user("Why?"),
    )
    assert here.send(first) is None
    edited = replace(first.messages[1], content="Tell me about the cow in the house, please.")
    messages = (first.messages[0], edited, *first.messages[2:], says("So."), user("And?"))
    found = sure(here.send(chat(*messages)))
    assert found.change is Change.EDITED
    assert str(found.place) == "messages[1].content"
    assert found.place.offset == len("Tell me about the c")
    assert found.place.role == "user"
    assert found.theirs.startswith(("at", "cat", " cat"))


def test_text_that_is_no_chat_is_explained_by_what_was_lost() -> None:
    ghosts = Ghosts(2**20)
    text = RULES + "and so on"
    prompt = text_prompt(TOKENIZER.encode(text))
    earlier = text_prompt(TOKENIZER.encode(RULES + "but no more"))
    ghosts.see(earlier)
    ghosts.note_read(earlier, len(earlier.tokens))
    sightings = [ghosts.find(prompt)]
    finding = found(prompt, offset=0, tier=None, gain_min=8, sightings=sightings)
    found_here = sure(explain(None, text, finding, TOKENIZER))
    assert found_here.change is Change.NEVER_CAPTURED
    assert str(found_here.place) == "text"


# --- nothing to explain ---


@pytest.mark.parametrize("name", SOURCES)
def test_what_goes_as_it_should_is_not_explained(name: str) -> None:
    here = reader(name, gain_min=32)
    first = chat(system(RULES), user("Tell me about the cat in the house."))
    assert here.send(first) is None, "the first of its kind"
    assert here.send(first) is None, "a resend"
    longer = (*first.messages, says("It sits there."), user("And the dog?"))
    assert here.send(chat(*longer)) is None, "the next turn"
    assert here.send(chat(*longer[:2], says("It ran away."), user("Why?"))) is None, "another reply"
    assert here.send(chat(*longer[:3], user("What about the cow?"))) is None, "asked otherwise"
    assert here.send(chat(system(RULES), user("Which way is it?"))) is None, "a new conversation"
    assert here.send(chat(system("You know all about ships and the sea. " * 9), user("Well?"))) is (
        None
    ), "another system prompt"
    assert here.send(chat(user("Who are you?"))) is None


def test_a_short_prompt_is_not_worth_a_word() -> None:
    here = reader("chatml", gain_min=64)
    here.send(chat(system("It is 09:41:07."), user("Why?")))
    assert here.send(chat(system("It is 09:41:09."), user("Why?"))) is None


@pytest.mark.parametrize("name", WITH_CALLS)
def test_another_conversation_is_no_edited_one(name: str) -> None:
    """Though it reads the same files, or says what the other one said."""
    here = reader(name, gain_min=32)
    other = says("I look at the other one first.", calls='{"path": "b.py"}')
    second = other, result("It says that they went away, all of them, in one night.")
    here.send(chat(*ASKED, *LOOP, *second, tools=TOOLS))
    quoting = (system(RULES), user("Where is it said?"), says(LOOP[1].content), user("And why?"))
    for messages in ((*ASKED, *second, *LOOP), quoting):
        assert here.send(chat(*messages, tools=TOOLS)) is None


# --- lost ---


def test_evicted_and_never_captured_are_known() -> None:
    first = chat(system(RULES), user("Tell me about the cat in the house."))
    here = reader("chatml")
    here.send(first)
    here.evict(BoundaryKind.TURN)
    lost = sure(here.send(first))
    assert (lost.change, lost.offset) == (Change.EVICTED, 0)
    assert lost.fate
    assert lost.fate.boundary is BoundaryKind.TURN
    assert "evicted (turn)" in lost.line()

    for kind in FateKind:
        if kind in (FateKind.EVICTED, FateKind.NO_BOUNDARY):
            continue
        here = reader("chatml")
        here.skips = dict.fromkeys(BoundaryKind, kind)
        here.send(first)
        never = sure(here.send(first))
        assert never.change is Change.NEVER_CAPTURED
        assert never.fate
        assert never.fate.kind is kind
        assert f"never captured, {kind.value}" in never.line()


def test_where_no_fate_is_known_none_is_guessed() -> None:
    here = reader("chatml")
    here.send(chat(system(RULES), user(RULES + "What about the cat?")))
    fork = sure(here.send(chat(system(RULES), user(RULES + "Why?"))))
    assert fork.change is Change.NEVER_CAPTURED
    assert fork.fate
    assert fork.fate.kind is FateKind.NO_BOUNDARY
    assert fork.differs_at > fork.offset > 0


def test_a_difference_says_as_well_what_was_lost_before_it() -> None:
    here = reader("chatml")
    for second in (7, 9):
        found = here.send(chat(system(f"{RULES} 09:41:0{second} {RULES}"), user("Why?")))
    assert sure(found).change is Change.TIME
    fate = sure(found).fate
    assert fate
    assert fate.kind is FateKind.NO_BOUNDARY


@pytest.mark.parametrize(
    ("read", "kept", "said"),
    [
        (0, 0, "seen before, none of them read, none kept."),
        (7, 0, "seen before, 7 of them read, none kept."),
        (9, 5, "seen before, 9 of them read, 5 kept."),
        (None, 5, "read before, and 5 are kept."),
        (None, 0, "read before, and are not kept."),
    ],
)
def test_it_is_said_how_much_was_read_of_what_was_seen(
    read: int | None, kept: int, said: str
) -> None:
    ghosts, prompt = Ghosts(2**20), text_prompt(TOKENIZER.encode(RULES))
    length, [end] = len(prompt.tokens), prompt.boundaries
    ghosts.see(prompt)
    ghosts.note_read(prompt, length if read is None else read)
    kind = FateKind.EVICTED if read is None else FateKind.CANCELLED
    ghosts.note("", prompt.packed, Fate(kind, length, end.kind))
    finding = found(prompt, offset=kept, tier=None, gain_min=8, sightings=[ghosts.find(prompt)])
    why = sure(explain(None, RULES, finding, TOKENIZER))
    assert f": {length} were {said.rsplit(', ', 1)[0]}, " in why.line()
    reply = {
        "model": "toy",
        "prompt_tokens": length,
        "would_reuse": {"tokens": kept, "tier": None},
        "boundaries": [],
        "volatility": [],
        **difference(why),
    }
    assert f"{length} tokens of it were {said}" in draw_explanation(reply)


def test_one_domain_learns_nothing_of_another() -> None:
    here = reader("chatml")
    here.send(chat(system(f"{RULES} 09:41:07 {RULES}"), user("Why?")), "alice")
    here.evict(BoundaryKind.END)
    assert here.send(chat(system(f"{RULES} 09:41:09 {RULES}"), user("Why?")), "bob") is None


def test_the_log_has_no_word_of_the_prompt() -> None:
    secret = "xyzzyqwerty"
    arguments = json.dumps({secret: secret, "path": "a.py"})
    turned = json.dumps({"path": "a.py", secret: secret})
    for name in WITH_CALLS:
        here = reader(name)
        here.send(chat(*ASKED, says(secret, calls=arguments), result(secret * 3)))
        again = chat(*ASKED, says(secret, calls=turned), result(secret * 3), user(secret))
        line = sure(here.send(again)).line()
        assert secret not in line
        assert "\n" not in line
    odd = tool("look")
    odd["function"]["parameters"]["properties"] = {f"{secret} \n": {"description": "09:41:07"}}
    here = reader("loops")
    here.send(chat(*ASKED, tools=(odd, *TOOLS[1:])))
    other = json.loads(json.dumps(odd).replace("09:41:07", "09:41:09"))
    line = sure(here.send(chat(*ASKED, tools=(other, *TOOLS[1:])))).line()
    assert secret not in line
    assert "tools[0]" in line


# --- cost ---


class Counting(Tokenizer):
    """One that knows how much it was given."""

    chars = pieces = 0

    def encode(self, text: str) -> list[int]:
        self.chars += len(text)
        return super().encode(text)

    def piece_bytes(self, id_: int) -> bytes:
        self.pieces += 1
        return super().piece_bytes(id_)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_a_long_prompt_is_neither_encoded_nor_decoded_again(name: str) -> None:
    here = reader(name)
    asked = (*ASKED, *LOOP * 80)
    here.send(chat(*asked, tools=TOOLS))
    for changed in (
        chat(*asked, says("So."), user("And?"), tools=TOOLS),
        chat(*asked, tools=TOOLS[::-1]),
        chat(*asked[:2], says(None, calls='{"deep": 3, "path": "a.py"}'), *asked[3:], tools=TOOLS),
        chat(system(RULES + "x"), *asked[1:], tools=TOOLS),
    ):
        text = here.template.render(changed, now=here.now)
        finding = here.look(changed)
        counting = Counting.load(FIXTURE)
        assert isinstance(counting, Counting)
        assert explain(changed, text, finding, counting)
        assert len(text) > 10_000
        assert counting.chars < 500
        assert counting.pieces < 500
