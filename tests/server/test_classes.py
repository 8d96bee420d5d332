"""A client may say who waits for its answer: a person, or a program."""

import asyncio
from typing import Any

import pytest

from flm.core.request import Priority
from tests.server.asking import chat, post, refused
from tests.server.house import House, in_process


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, Priority.INTERACTIVE),
        ({"class": None}, Priority.INTERACTIVE),
        ({"class": "interactive"}, Priority.INTERACTIVE),
        ({"class": "agent"}, Priority.AGENT),
        ({"model": "tiny:1m@agent"}, Priority.AGENT),
        ({"model": "Somebody/TEENY@Agent"}, Priority.AGENT),
        ({"model": "tiny@interactive"}, Priority.INTERACTIVE),
        ({"model": "tiny@agent", "class": "interactive"}, Priority.INTERACTIVE),
    ],
)
def test_a_request_has_the_class_it_asks_for(
    house: House, fields: dict[str, Any], priority: Priority
) -> None:
    house.say("so")
    reply = chat(house, **fields)
    assert house.requests[0].priority is priority
    assert reply["model"] == fields.get("model", "tiny:1m")


def test_plain_completions_have_classes_too(house: House) -> None:
    house.say("so", "so")

    async def ask(**fields: Any) -> int:
        async with in_process(house) as client:
            body = {"model": "tiny:1m", "prompt": "Once", **fields}
            return (await client.post("/v1/completions", json=body)).status_code

    assert asyncio.run(ask(model="tiny@agent")) == 200
    assert asyncio.run(ask(**{"class": "agent"})) == 200
    assert [request.priority for request in house.requests] == [Priority.AGENT] * 2


@pytest.mark.parametrize("word", ["idle", "robot", "", 5, ["agent"]])
def test_no_other_class_is_for_clients(house: House, word: Any) -> None:
    error = refused(house, **{"class": word})
    assert error["param"] == "class"
    assert error["fix"]


@pytest.mark.parametrize("word", ["idle", "robot", ""])
def test_nor_is_one_behind_the_models_name(house: House, word: str) -> None:
    error = refused(house, model=f"tiny:1m@{word}")
    assert error["param"] == "model"
    assert "tiny:1m@agent" in error["fix"]


def test_a_class_makes_no_model_out_of_nothing(house: House) -> None:
    for model in ("other@agent", "other@robot", "@agent"):
        response = post(house, model=model)
        assert response.status_code == 404, response.text
