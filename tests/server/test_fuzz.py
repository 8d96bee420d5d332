"""Whatever is sent, the answer is no 500 and the server goes on: schemathesis over our OpenAPI."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from flm import console
from flm.server.app import create_app
from tests.server.house import CARD, SETTINGS, open_house

schemathesis = pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

EXAMPLES_MAX = 100
BODIES = (
    "ChatBody",
    "CompletionBody",
    "MessagesBody",
    "CountBody",
    "ResponsesBody",
    "TokenizeBody",
)
BODIES += ("OllamaChatBody", "OllamaGenerateBody", "Options")


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of a house of its own. Bodies name the model and ask for little, or none would get far."""
    console.configure(level="error")
    with open_house(tmp_path_factory.mktemp("fuzz")) as house:
        app = create_app(SETTINGS, house.residence)
        document = app.openapi()
        for body in BODIES:
            fields = document["components"]["schemas"][body]["properties"]
            if "model" in fields:
                fields["model"] = {"enum": [CARD.tag]}
            fields.pop("keep_alive", None)  # or one of them unloads it, and the rest find nothing
            for limit in {
                "max_tokens",
                "max_completion_tokens",
                "max_output_tokens",
                "num_predict",
            } & fields.keys():
                fields[limit] = {"type": "integer", "minimum": 1, "maximum": 4}
        loaded = schemathesis.openapi.from_dict(document)
        loaded.app = app
        yield loaded
    console.configure()


@pytest.mark.timeout(900)  # a hundred requests a route
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_no_request_is_answered_with_500(schema: Any, mode: str) -> None:
    statuses: dict[int, int] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == "/v1/events":
            continue  # it has no end
        if mode == "NEGATIVE" and not operation.body:
            continue  # nothing in it that could be wrong
        cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])

        @settings(
            max_examples=EXAMPLES_MAX if operation.body else 5,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def attack(case: Any) -> None:
            response = case.call()
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
            assert response.status_code < 500, response.text
            if response.status_code >= 400 and case.method != "HEAD":
                error = response.json()["error"]  # a text below /api, as Ollama has it
                assert error if isinstance(error, str) else error["message"]

        attack()
    wanted = 200 if mode == "POSITIVE" else 400
    assert statuses[wanted] > 20, f"too few were what they were meant to be: {statuses}"
