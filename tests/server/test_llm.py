"""The Python facade says what the server would."""

import threading

import pytest

from flm.core.chat import DeltaKind, Message
from flm.core.event import FinishReason
from flm.errors import PromptTooLong
from flm.llm import LLM
from tests.server.house import House


@pytest.fixture
def llm(house: House) -> LLM:
    return LLM(house.resident)


def test_a_chat_gives_text_thought_and_usage(house: House, llm: LLM) -> None:
    house.say("<think>hm</think>Hello.")
    reply = llm.chat("hello", temperature=0.7, top_k=5)
    assert (reply.text, reply.reasoning, reply.reason) == ("Hello.", "hm", FinishReason.STOP)
    assert reply.usage.prompt_tokens == len(house.requests[0].prompt.tokens)
    assert house.requests[0].sampling.top_k == 5


def test_messages_may_be_mappings_or_messages(house: House, llm: LLM) -> None:
    house.say("fine")
    llm.chat([{"role": "system", "content": "be brief"}, Message("user", "hello")])
    assert "system\nbe brief<|im_end|>\n<|im_start|>user\nhello" in house.prompt_text()


def test_a_stream_gives_deltas_and_the_whole_reply(house: House, llm: LLM) -> None:
    house.say("one two three")
    stream = llm.stream("count", stop=["three"])
    deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == "one two "
    assert {delta.kind for delta in deltas} == {DeltaKind.CONTENT}
    assert stream.reply.text == "one two "


def test_a_closed_stream_ends_early(house: House, llm: LLM) -> None:
    slow = threading.Event()
    house.during_passes(lambda: (slow.wait(0.01), None)[1])
    house.say("endless ", end=False)
    stream = llm.stream("go on")
    next(stream)
    stream.close()
    assert stream.reply.reason is FinishReason.CANCELLED


def test_a_completion_takes_text_or_ids(house: House, llm: LLM) -> None:
    house.say("a", "b")
    assert llm.complete("Once").text == "a"
    assert llm.complete([5, 6], max_tokens=1).usage.prompt_tokens == 2


def test_a_prompt_past_the_window_is_an_error(llm: LLM) -> None:
    with pytest.raises(PromptTooLong):
        llm.chat("word " * 600)
