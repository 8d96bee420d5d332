"""What users reported of other servers does not happen here: prompts that begin alike, or are the
same, with whatever came between them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.errors import DeviceFailed
from tests.server.reported import LAYOUTS, SETTINGS, Servers, say, two_servers, words

GREATER = 2200
kinds = pytest.mark.parametrize("kind", LAYOUTS)


def ids(seed: int, count: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(17, 400, count).tolist()
    return found


# --- https://github.com/vllm-project/vllm/issues/45238: below some length a start was no hit ---


@kinds
@pytest.mark.parametrize("shared", [*range(100, GREATER, 400), 1600])
def test_one_shots_share_their_start_whatever_its_length(
    tmp_path: Path, kind: str, shared: int
) -> None:
    start = ids(0, shared)
    with two_servers(tmp_path, kind, chunk_len_max=256) as servers:
        cached = [
            servers.warm.complete(start + ids(seed, GREATER - shared), max_tokens=1).cached
            for seed in range(1, 5)
        ]
        last = servers.complete(start + ids(9, GREATER - shared))
        # With state the second shows where they part, and keeps it: the third finds it.
        assert cached == ([0, shared] if kind == "rows" else [0, 0]) + [shared, shared]
        assert last.cached == shared


@kinds
def test_the_hits_of_sixty_four_one_shots_never_end(tmp_path: Path, kind: str) -> None:
    """In a budget that holds a few of them."""
    with two_servers(tmp_path, kind, chunk_len_max=256, cache_bytes=5 * 2200 * 32) as servers:
        start = ids(0, 1500)
        prompts = [start + ids(seed, 700) for seed in range(1, 65)]
        cached = [servers.warm.complete(prompt, max_tokens=1).cached for prompt in prompts]
        assert min(cached[2:]) >= 1500
        servers.warm.check()
        assert servers.house.log[-1].startswith("Prefix cache: dropping")


@kinds
def test_a_question_at_the_end_of_a_long_form_is_all_that_is_read(
    tmp_path: Path, kind: str
) -> None:
    """https://github.com/amd/FastFlowLM/issues/737: 1,880 tokens shared, 35 new, each time 7 s."""
    with two_servers(tmp_path, kind) as servers:
        form = words(1800)
        reads = [
            servers.chat([say("user", f"{form}. Now: {words(12, seed)}?")]) for seed in range(1, 6)
        ]
        assert all(read.length > 1800 for read in reads)
        assert all(read.length - read.cached <= 60 for read in reads[2:])


# --- https://github.com/ggml-org/llama.cpp/issues/23030: the same again was read again ---

CHUNK = 16


@kinds
def test_the_same_prompt_again_is_not_read_whatever_its_length(tmp_path: Path, kind: str) -> None:
    """sgl-project/sglang#29633 (1 more than a chunk), vllm-project/vllm#51094 (whole chunks)."""
    settings = replace(SETTINGS, prefix_min_gain=0)
    with two_servers(tmp_path, kind, chunk_len_max=CHUNK, settings=settings) as servers:
        for length in range(1, 3 * CHUNK + 3):
            prompt = ids(length, length)
            first = servers.complete(prompt)
            again = servers.warm.complete(prompt)
            assert first.cached <= 1, "a token in common, by chance"
            assert again.text == first.text
            # A lone token is read in a way of its own, which a state would sum up.
            assert again.cached == (0 if kind == "state" and length == 1 else length)


@kinds
@pytest.mark.parametrize("length", [64, 65, 127, 128, 129, 191, 192, 193])
def test_the_same_chat_again_is_not_read(tmp_path: Path, kind: str, length: int) -> None:
    with two_servers(tmp_path, kind) as servers:
        asked = [say("user", words(length, length))]
        first, again = servers.chat(asked), servers.chat(asked)
        assert (first.cached, again.cached) == (0, first.length)
        assert first.text == again.text


@kinds
def test_a_start_of_a_kept_prompt_has_its_own_logits(tmp_path: Path, kind: str) -> None:
    """https://github.com/vllm-project/vllm/issues/51094: those of the token before."""
    with two_servers(tmp_path, kind) as servers:
        prompt = ids(0, 200)
        servers.complete(prompt)
        for length in (199, 198, 128, 65, 2, 1):
            assert servers.complete(prompt[:length]).cached < length


# --- FastFlowLM issue 486, pull request 542: what stood between left half of it behind ---


def fail(servers: Servers, asked: list[Any]) -> None:
    def fails() -> None:
        raise DeviceFailed("told to", fix="none")

    servers.house.during_passes(fails)
    response = servers.warm.post("/v1/chat/completions", messages=asked)
    servers.house.during_passes(lambda: None)
    assert response.status_code == 500


def refuse(servers: Servers, asked: list[Any]) -> None:
    body = {"messages": asked, "temperature": "hot"}
    assert servers.warm.post("/v1/chat/completions", **body).status_code == 400


def overflow(servers: Servers, asked: list[Any]) -> None:
    longer = [*asked, say("assistant", ""), say("user", words(20_000))]
    assert servers.warm.post("/v1/chat/completions", messages=longer).status_code == 400


def complete(servers: Servers, asked: list[Any]) -> None:
    servers.complete(servers.house.prompt_text())
    servers.complete(words(50, 6))


def stream(servers: Servers, asked: list[Any]) -> None:
    response = servers.warm.post("/v1/chat/completions", messages=asked, stream=True)
    assert response.text.endswith("data: [DONE]\n\n")


def salt(servers: Servers, asked: list[Any]) -> None:
    servers.chat(asked, cache_salt="another's")


def with_tools(servers: Servers, asked: list[Any]) -> None:
    look = {"type": "function", "function": {"name": "look", "parameters": {}}}
    servers.chat(asked, tools=[look])


def nothing(servers: Servers, asked: list[Any]) -> None:
    """Not even that."""


@kinds
@pytest.mark.parametrize(
    "between", [nothing, fail, refuse, overflow, complete, stream, salt, with_tools]
)
def test_nothing_in_between_makes_a_chat_go_on_from_elsewhere(
    tmp_path: Path, kind: str, between: Any
) -> None:
    with two_servers(tmp_path, kind, settings=replace(SETTINGS, lanes=1)) as servers:
        chat = [say("system", words(100)), say("user", words(100, 1))]
        before = servers.chat(chat)
        for number in range(3):
            between(servers, chat)
            between(servers, [say("user", f"Something else. {words(99, number + 3)}")])
            tool = say("tool", words(30, number), tool_call_id="1", name="look")
            chat += [say("assistant", "So."), tool, say("user", f"And {number}? {words(70, 2)}")]
            after = servers.chat(chat)
            assert before.length - 4 <= after.cached < after.length
            before = after
