"""/v1/chat/completions, whole replies: what clients send is understood, what they need comes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.server.asking import HELLO, chat
from tests.server.house import CONTEXT_LENGTH, House


def test_a_reply_has_the_fields_that_strict_clients_check(house: House) -> None:
    house.say("Hello there.")
    reply = chat(house)
    assert reply["object"] == "chat.completion"
    assert reply["model"] == "tiny:1m"
    assert reply["id"].startswith("chatcmpl-")
    assert reply["system_fingerprint"]
    assert isinstance(reply["created"], int)
    choice = reply["choices"][0]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hello there.",
        "refusal": None,
        "annotations": [],
    }


def test_ids_are_unique(house: House) -> None:
    house.say("a", "b")
    assert chat(house)["id"] != chat(house)["id"]


def test_usage_adds_up_and_names_what_was_cached(house: House) -> None:
    house.say("first", "second")
    question = [{"role": "user", "content": "word " * 150}]
    cold, warm = (chat(house, messages=question)["usage"] for _ in range(2))
    for usage in (cold, warm):
        assert usage["prompt_tokens"] == len(house.requests[0].prompt.tokens)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0}
    assert warm["prompt_tokens_details"] == {"cached_tokens": warm["prompt_tokens"]}


def test_fastflowlm_and_llama_cpp_figures_come_with_a_reply(house: House) -> None:
    house.say("one two three")
    reply = chat(house)
    flm = ("prefill_duration_ttft", "decoding_speed_tps", "kv_token_occupancy_rate_percentage")
    assert all(isinstance(reply["usage"][name], float) for name in flm)
    assert reply["timings"]["prompt_n"] == reply["usage"]["prompt_tokens"]
    assert reply["timings"]["predicted_n"] == reply["usage"]["completion_tokens"]


def test_unknown_fields_pass(house: House) -> None:
    house.say("fine")
    chat(house, options={"num_ctx": 4096}, store=False, client_metadata={"a": [1]}, user="me")


def test_nulls_mean_the_default(house: House) -> None:
    house.say("fine")
    names = ("temperature", "top_p", "stop", "seed", "n", "tools", "max_tokens", "stream", "think")
    chat(house, **dict.fromkeys((*names, "response_format", "logit_bias", "tool_choice")))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_the_window_holds_are_clamped_to_it(house: House, name: str) -> None:
    """Agents send 65536 with every request: refusing it would refuse them all."""
    house.say("x", end=False)
    reply = chat(house, **{name: 65536})
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == CONTEXT_LENGTH


def test_a_reply_without_a_limit_may_fill_the_window(house: House) -> None:
    house.say("x", end=False)
    assert chat(house)["usage"]["total_tokens"] == CONTEXT_LENGTH


def test_a_reply_goes_on_past_its_end_when_asked_to(house: House) -> None:
    house.say("one")
    reply = chat(house, ignore_eos=True, max_tokens=20)
    assert reply["usage"]["completion_tokens"] == 20
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_reply_is_cut_at_its_limit(house: House) -> None:
    house.say("one two three four five", "one two three four five")
    reply = chat(house, max_completion_tokens=2, max_tokens=5)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 2
    assert chat(house, max_tokens=-1)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("content", [None, [], "", [{"type": "text", "text": "part"}], "missing"])
def test_content_may_be_null_parts_or_missing_on_every_role(
    house: House, role: str, content: Any
) -> None:
    house.say("fine")
    message = {"role": role} if content == "missing" else {"role": role, "content": content}
    chat(house, messages=[*HELLO, message, *HELLO])
    assert f"<|im_start|>{role}\n" in house.prompt_text()
    assert "None" not in house.prompt_text()


def test_text_parts_are_joined(house: House) -> None:
    house.say("fine")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat(house, messages=[{"role": "user", "content": parts}])
    assert "user\none\ntwo<|im_end|>" in house.prompt_text()


def test_a_developer_message_is_a_system_message(house: House) -> None:
    house.say("fine")
    chat(house, messages=[{"role": "developer", "content": "be brief"}, *HELLO])
    assert house.prompt_text().startswith("<|im_start|>system\nbe brief<|im_end|>")


def test_system_messages_are_rendered_in_place(house: House) -> None:
    house.say("fine")
    chat(house, messages=[*HELLO, {"role": "system", "content": "now French"}, *HELLO])
    text = house.prompt_text()
    assert text.index("hello") < text.index("now French") < text.rindex("hello")


def test_two_assistant_messages_in_a_row_pass(house: House) -> None:
    house.say("fine")
    said = [{"role": "assistant", "content": word} for word in ("one", "two")]
    chat(house, messages=[*HELLO, *said, *HELLO])
    assert "assistant\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>" in house.prompt_text()


def test_a_begun_reply_is_gone_on_from(house: House) -> None:
    house.say(" the end.")
    reply = chat(house, messages=[*HELLO, {"role": "assistant", "content": "Once and"}])
    assert house.prompt_text().endswith("<|im_start|>assistant\nOnce and")
    assert reply["choices"][0]["message"]["content"] == " the end."


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("content", ["", None, " \n"])
def test_empty_assistant_messages_at_the_end_are_dropped(
    house: House, count: int, content: str | None
) -> None:
    house.say("fine")
    chat(house, messages=[*HELLO, *[{"role": "assistant", "content": content}] * count])
    assert house.prompt_text().endswith("hello<|im_end|>\n<|im_start|>assistant\n")


def test_a_tool_call_with_null_content_and_its_result_are_rendered(house: House) -> None:
    """mlx-lm#185: such a history crashed the template."""
    house.say("sunny")
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
    chat(
        house,
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "name": "look", "content": "18 degrees"},
        ],
    )
    text = house.prompt_text()
    assert "<tool_call>look" in text
    assert "tool\n18 degrees<|im_end|>" in text


def test_a_tool_result_may_be_an_array(house: House) -> None:
    """ninfer#56: refused; sglang#22595: rendered empty, so the model asked again and again."""
    house.say("fine")
    parts = [{"type": "text", "text": "18 degrees"}]
    chat(house, messages=[*HELLO, {"role": "tool", "tool_call_id": "1", "content": parts}])
    assert "tool\n18 degrees<|im_end|>" in house.prompt_text()


def test_empty_tool_calls_are_none(house: House) -> None:
    house.say("fine")
    chat(house, messages=[*HELLO, {"role": "assistant", "content": "a", "tool_calls": []}, *HELLO])
    assert "<tool_call>" not in house.prompt_text()


def test_tools_reach_the_template_as_sent(house: House) -> None:
    house.say("fine", "fine")
    function = {"name": "look", "strict": True, "parameters": {"z": 1, "a": {"type": "object"}}}
    tool = {"type": "function", "function": function}
    chat(house, tools=[tool, {"type": "web_search"}], tool_choice="auto")
    assert '{"name": "look", "strict": true, "parameters": {"z": 1, "a"' in house.prompt_text()
    assert "web_search" not in house.prompt_text()
    chat(house, tools=[tool], tool_choice="none")
    assert house.requests[0].prompt.tokens == house.requests[1].prompt.tokens


def test_logprobs_describe_each_token(house: House) -> None:
    house.say("Hi")
    reply = chat(house, logprobs=True, top_logprobs=3)
    entries = reply["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "Hi"
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3


def test_logprobs_without_alternatives_are_the_tokens_alone(house: House) -> None:
    house.say("Hi")
    entries = chat(house, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in entries)


def test_several_choices_read_the_prompt_once(house: House) -> None:
    house.say("one", "two", "three")
    question = [{"role": "user", "content": "word " * 150}]
    reply = chat(house, messages=question, n=3, seed=5, temperature=1)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    said = [choice["message"]["content"] for choice in reply["choices"]]
    assert sorted(said) == ["one", "three", "two"]
    assert [request.sampling.seed for request in house.requests] == [5, 6, 7]
    assert reply["usage"]["prompt_tokens"] == len(house.requests[0].prompt.tokens)
    again = chat(house, messages=question)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(
        house.requests[0].prompt.tokens
    )


def test_a_seed_repeats_a_reply(house: House) -> None:
    asked: dict[str, Any] = {"temperature": 1.5, "max_tokens": 12}
    texts = [
        chat(house, seed=seed, **asked)["choices"][0]["message"]["content"] for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_temperature_next_to_zero_is_greedy(house: House) -> None:
    house.say("a")
    chat(house, temperature=1e-320)
    assert house.requests[0].sampling.temperature == 0


def test_sampling_is_per_request_and_defaults_to_the_card(house: House) -> None:
    """FastFlowLM keeps what one request set for the next."""
    house.say("a", "b", "c")
    chat(house, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1)
    chat(house)
    chat(house, presence_penalty=1, frequency_penalty=-1, logit_bias={"5": 3}, top_k=0)
    first, second, third = (request.sampling for request in house.requests)
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0.5, 0.9, 40, 0.1)
    assert second == house.resident.card.sampling
    assert (third.presence_penalty, third.frequency_penalty, third.top_k) == (1, -1, None)
    assert dict(third.logit_bias) == {5: 3}


@pytest.mark.parametrize(
    "name", ["tiny:1m", "tiny", "TINY:1m", "teeny", "flm/tiny:1m", "tiny-1m-FLM"]
)
def test_a_model_is_known_by_tag_alias_and_name(house: House, name: str) -> None:
    house.say("fine")
    assert chat(house, model=name)["model"] == name


def test_a_lone_surrogate_is_read_as_a_replacement(house: House) -> None:
    """JavaScript cuts an emoji in two and sends the half."""
    house.say("fine")
    chat(house, messages=[{"role": "user", "content": "cut \ud83d"}])
    assert "cut \ufffd<|im_end|>" in house.prompt_text()


def test_a_model_that_thinks_does_so_unless_told_otherwise(house: House) -> None:
    house.say("fine", "fine")
    card = replace(house.resident.card, thinks=True)
    house.residence.settle(replace(house.resident, card=card))
    for fields, thinks in (({}, True), ({"think": False}, False)):
        chat(house, **fields)
        assert house.prompt_text().endswith("<think>\n") is thinks
