"""Up to two hundred prompts, asked in any order: what is reused changes no token.

Each is also asked of an engine that reuses nothing. Prompts are what the Hermes agent sent, cut
short to fit the small models, and made-up chats that share heads, fork and loop over tools.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.prompt import Prompt
from flm.core.request import SamplingParams
from flm.graph.weights.gguf import GgufFile
from flm.llm import LLM
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout
from flm.prefix.boundaries import BoundaryFinder
from flm.settings import Settings
from flm.text.template import ChatTemplate
from tests.engine.rig import TOKENIZER, VOCABULARY, Recorder, Rig, request_of
from tests.models.drive import FIXTURES, Graph, unpacked
from tests.pure.explained import NOW, SOURCES
from tests.server.reported import words

TRACES = Path(__file__).resolve().parents[2] / "bench" / "traces" / "hermes.jsonl.gz"
PROMPTS, FEW = 200, 50
LENGTH_MAX = 250  # of the small models' 256
REUSED_MIN = 0.6  # of the warm runs
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=1.0, top_p=0.95, seed=11),
}
NEW_TOKENS = 2


@cache
def traces() -> list[dict[str, Any]]:
    with gzip.open(TRACES, "rt") as lines:
        return [json.loads(line)["body"] for line in lines]


def traced(body: dict[str, Any], *, cut: Callable[[str], str], tools: int) -> Conversation:
    """With its texts and the number of its tools cut."""
    messages = []
    for each in body["messages"]:
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], cut(call["function"]["arguments"]))
            for call in each.get("tool_calls") or []
        )
        content = cut(each["content"] or "")
        messages.append(
            Message(each["role"], content, None, calls, each.get("tool_call_id"), each.get("name"))
        )
    return Conversation(tuple(messages), tuple(body["tools"][:tools]))


def task(text: str) -> str:
    """Where one agent differs from the next: the start, and what precedes the last rules."""
    return text[:24] if len(text) < 910 else f"{text[:60]} {text[-910:-830]}"


def made_up() -> Iterator[Conversation]:
    """Chats and tool loops as they grow, over a few heads; then one-shots that begin alike."""
    tools = ({"type": "function", "function": {"name": "look", "description": "it"}},)
    for head in range(5):
        system = Message("system", f"{words(10, head)}. {words(8, head + 1)}")
        for chat in range(4):
            messages: list[Message] = [system]
            for turn in range(3):
                messages.append(Message("user", f"{chat}{turn} {words(5, chat + turn)}?"))
                yield Conversation(tuple(messages), tools * (chat % 2))
                if chat % 2 and turn == 1:
                    call = ToolCall("1", "look", json.dumps({"path": words(1, chat)}))
                    messages.append(Message("assistant", "", f"Hm, {head}.", (call,)))
                    messages.append(Message("tool", words(6, turn), tool_call_id="1"))
                    yield Conversation(tuple(messages), tools)
                messages.append(Message("assistant", words(4, turn)))
    for number in range(PROMPTS):
        form = words(25, number % 3)
        yield Conversation((Message("user", f"{form} {number} {words(9, number)}"),))


def conversations(cut: Callable[[str], str], tools: int) -> list[Conversation]:
    found = [traced(body, cut=cut, tools=tools) for body in traces()]
    for each in made_up():
        if len(found) < PROMPTS:
            found.append(each)
    return found


@cache
def prompts() -> list[Prompt]:
    marks = {"bos_token": TOKENIZER.bos_token, "eos_token": TOKENIZER.eos_token}
    finder = BoundaryFinder(ChatTemplate(SOURCES["loops"], **marks), TOKENIZER)
    small = conversations(task, tools=0)
    return [finder.find(each, now=NOW, length_max=LENGTH_MAX) for each in small]


# Every family's tiny model: all prompts for one of rows alone and one with state, else a few.
ASKED = {
    "llama.Q4_K_M": PROMPTS,
    "qwen35_k4v8.Q4_K_M": PROMPTS,
    "gemma3.Q4_0": FEW,
    "gemma4.Q4_0": FEW,
    "gptoss.MXFP4_MOE": FEW,
    "granite.Q4_0": FEW,
    "lfm2.Q4_0": FEW,
    "phi3.Q4_K_M": FEW,
    "qwen2.Q4_0": FEW,
    "qwen3.Q4_0": FEW,
    "qwen35moe.Q4_0": FEW,
    "smollm3.Q4_0": FEW,
}


def graph_of(name: str, folder: Path) -> Graph:
    path = FIXTURES / name.partition(".")[0] / f"{name}.gguf"
    source = GgufFile(path if path.exists() else unpacked(path, folder))
    return Graph(source, folder, int8_activations=True, capacity=1)


def rig_of(graph: Graph, folder: Path, **sizes: Any) -> Rig:
    def cpu_runner(
        folder: Path, layout: MemoryLayout, *, lanes: int, capacity_max: int, **hooks: object
    ) -> tuple[Recorder, Lanes]:
        room = Lanes(graph.device, layout, count=lanes, capacity_max=capacity_max)
        return Recorder(graph.program, graph.device, layout, room, vocabulary=VOCABULARY), room

    return Rig(folder, layout=graph.emitted.layout, make_runner=cpu_runner, **sizes)


@pytest.mark.parametrize("name", ASKED)
def test_prompts_say_the_same_warm_and_cold(name: str, tmp_path: Path) -> None:
    """One at a time: where a lone row is read otherwise, a reply beside others may differ."""
    graph, count = graph_of(name, tmp_path), ASKED[name]
    cold = rig_of(graph, tmp_path, cache_bytes=0, lanes=1, chunk_len_max=256)
    layout = graph.emitted.layout
    few = 0.3 * count * (100 * layout.row_bytes + layout.state_bytes)  # some are given up
    warm = rig_of(graph, tmp_path, cache_bytes=int(few), lanes=3, chunk_len_max=48, gain_min=16)
    differ, reused = [], 0
    order = np.random.default_rng(5).permutation(PROMPTS).tolist()
    for turn, index in enumerate(order[:count]):
        how = SAMPLINGS["sampled" if turn % 2 else "greedy"]
        asked = request_of(str(index), prompts()[index], sampling=how, max_tokens=NEW_TOKENS)
        for rig in (cold, warm):
            rig.engine.submit(asked)
            while rig.engine.busy:
                rig.events += rig.engine.step()
        if warm.tokens(asked.id) != cold.tokens(asked.id):
            differ.append(index)
        assert cold.finished(asked.id).usage.cached_tokens == 0
        reused += warm.finished(asked.id).usage.cached_tokens > 0
        if turn % 10 == 0:
            warm.engine.check()
    assert not differ
    assert REUSED_MIN * count <= reused < count
    assert any("dropping" in line for line in warm.log)


def test_the_prompts_are_two_hundred_that_share_what_agents_share() -> None:
    """The tests themselves."""
    found = prompts()
    assert len({prompt.tokens for prompt in found}) >= 0.9 * PROMPTS
    assert sum(len(prompt.boundaries) > 1 for prompt in found) > 0.4 * PROMPTS
    assert max(len(prompt.tokens) for prompt in found) > 200


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_prompts_say_the_same_on_a_real_model(smollm2: Path, tmp_path: Path) -> None:
    """SmolLM2 as it is served, with its own template."""
    settings = Settings(
        lanes=2, prefix_disk_mb=0, prefix_cache_mb=1024, read_ahead=False, model_path=tmp_path
    )
    chats = conversations(lambda text: text[-400:], tools=0)
    order = np.random.default_rng(5).permutation(PROMPTS).tolist()
    answers: dict[bool, list[str]] = {False: [], True: []}
    reused = 0
    for warm in (False, True):
        with LLM.load(str(smollm2), replace(settings, reuse_prompt=warm)) as model:
            for turn, index in enumerate(order):
                how = SAMPLINGS["sampled" if turn % 2 else "greedy"]
                terms = {"temperature": how.temperature, "top_p": how.top_p, "seed": how.seed}
                reply = model.chat(chats[index].messages, max_tokens=8, **terms)
                answers[warm].append(reply.text)
                reused += reply.usage.cached_tokens > 0
                assert warm or not reply.usage.cached_tokens
    assert answers[True] == answers[False]
    assert reused >= REUSED_MIN * PROMPTS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_agents_whole_prompts_say_the_same_on_a_model_with_state(
    smollm2: Path, tmp_path: Path
) -> None:
    """What Hermes sent, uncut (8K to 13K tokens), on a tiny Qwen3.5 with a window of 131,072."""
    from bench.shapes import TINY, qwen35

    gguf = qwen35(smollm2, shape=TINY)
    settings = Settings(lanes=2, prefix_cache_mb=1024, model_path=tmp_path, ctx_len=131_072)
    answers: dict[bool, list[str]] = {False: [], True: []}
    reused = 0
    for warm in (False, True):
        chosen = replace(settings, reuse_prompt=warm, prefix_disk_mb=512 if warm else 0)
        for _ in range(1 + warm):  # the second time after a restart
            with LLM.load(str(gguf), chosen) as model:
                for body in traces():
                    chat = traced(body, cut=lambda text: text, tools=len(body["tools"]))
                    reply = model.chat(chat.messages, tools=chat.tools, max_tokens=4, temperature=0)
                    answers[warm].append(reply.text)
                    reused += reply.usage.cached_tokens > 0
    assert answers[True] == 2 * answers[False]
    assert reused >= REUSED_MIN * 2 * len(traces())
