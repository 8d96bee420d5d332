"""What a reply's ending makes of its calls: only whole ones are there to be run."""

import pytest

from flm.core.event import Admitted, Finished, FinishReason, Generated, Usage
from flm.core.prompt import Prompt
from flm.core.request import Request, SamplingParams
from flm.engine.answer import Answer
from flm.text.dialects.dialect import Dialect
from tests.pure.written import TOOLS, WRITTEN, Said


def answer_of(dialect: Dialect, text: str, reason: FinishReason) -> Answer:
    request = Request("one", Prompt((1,)), SamplingParams(), max_tokens=9)
    answer = Answer(request, dialect.open(TOOLS, False))
    answer.read(Generated("one", 2, text))
    answer.read(Finished("one", reason, Usage(1, 0, 1)))
    return answer


@pytest.mark.parametrize(("dialect", "text", "wanted"), WRITTEN)
def test_a_stop_string_anywhere_leaves_only_whole_calls_to_run(
    dialect: Dialect, text: str, wanted: Said
) -> None:
    for at in range(len(text) + 1):
        answer = answer_of(dialect, text[:at], FinishReason.STOP_STRING)
        if answer.calls:
            calls = tuple((call.name, call.arguments) for call in answer.tool_calls)
            assert calls == wanted.calls[: len(calls)]


@pytest.mark.parametrize(("dialect", "text", "wanted"), WRITTEN)
def test_a_reply_at_its_end_has_its_calls_run_and_one_out_of_room_has_not(
    dialect: Dialect, text: str, wanted: Said
) -> None:
    assert answer_of(dialect, text, FinishReason.STOP).calls == bool(wanted.calls)
    assert not answer_of(dialect, text, FinishReason.LENGTH).calls


def test_a_reply_that_is_left_is_counted_as_far_as_it_was_heard() -> None:
    answer = Answer(Request("one", Prompt((1, 2, 3)), SamplingParams(), max_tokens=9), None)
    assert answer.spent == Usage(3, 0, 0)
    answer.read(Admitted("one", 2))
    for token in (4, 5):
        answer.read(Generated("one", token, "a"))
    assert answer.spent == Usage(3, 2, 2)
    answer.read(Finished("one", FinishReason.LENGTH, Usage(3, 2, 9)))
    assert answer.spent == Usage(3, 2, 9)
