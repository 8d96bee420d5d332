"""Policies as the flags set them, over the whole way from a body to a prompt."""

from dataclasses import replace
from typing import Any

import pytest

from tests.server.asking import post
from tests.server.house import SETTINGS, House

MESSAGES = [
    {"role": "system", "content": "one"},
    {"role": "system", "content": "two"},
    {"role": "user", "content": "Why?"},
    {"role": "developer", "content": "four"},
]


def turns(house: House) -> list[str]:
    text = house.prompt_text().removesuffix("<|im_start|>assistant\n")
    return [turn.replace("\n", " ").strip() for turn in text.split("<|im_start|>") if turn]


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        ("inplace", ["system one  two", "user Why?", "system four"]),
        ("into-system", ["system one  two  four", "user Why?"]),
        ("after-system", ["system one  two", "system four", "user Why?"]),
        ("one-after-system", ["system one  two", "system four", "user Why?"]),
    ],
)
def test_a_developer_message_goes_where_the_policy_says(
    house: House, policy: str, seen: list[str]
) -> None:
    house.say("so")
    front = replace(SETTINGS, developer_message_policy=policy)
    assert post(house, settings=front, messages=MESSAGES).status_code == 200
    assert [turn.removesuffix("<|im_end|>") for turn in turns(house)] == seen


@pytest.mark.parametrize(
    ("flags", "param"),
    [
        ({"system_message_policy": "strict"}, "messages[1]"),
        ({"developer_message_policy": "reject"}, "messages[3]"),
    ],
)
def test_a_refusal_names_the_message_and_the_flag(
    house: House, flags: dict[str, Any], param: str
) -> None:
    response = post(house, settings=replace(SETTINGS, **flags), messages=MESSAGES)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert "-policy" in response.json()["error"]["message"]


@pytest.mark.parametrize(("policy", "keeps"), [("inplace", True), ("into-system", False)])
def test_what_moves_to_the_front_costs_all_that_was_read(
    house: House, policy: str, keeps: bool
) -> None:
    """As docs/prefix-cache.md says."""
    house.say("so", "so")
    front = replace(SETTINGS, developer_message_policy=policy)
    asked = [{"role": "system", "content": "rule"}, {"role": "user", "content": "word " * 150}]
    post(house, settings=front, messages=asked)
    later = [*asked, {"role": "assistant", "content": "so"}, {"role": "developer", "content": "x"}]
    later.append({"role": "user", "content": "And?"})
    usage = post(house, settings=front, messages=later).json()["usage"]
    assert (usage["prompt_tokens_details"]["cached_tokens"] > 100) == keeps
