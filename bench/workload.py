"""What interleaved agents send: who asks when, and how each conversation goes on.

Agents have system prompts and tools of their own, about 2,500 tokens. A turn is a tool's result of
30 to 1,500 tokens, drawn log-uniformly (all of an agent's anew until they add up to no more than
RESULTS_MAX, so that ten turns fit into 8,192 tokens), then a reply of 32. Between the turns come
side calls for a title, with a small system prompt that is theirs. Texts are words of one token.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.chat import WORDS
from flm.core.chat import Conversation, Message, ToolCall

SYSTEM_TOKENS, TASK_TOKENS = 2500, 60
RESULT_MIN, RESULT_MAX, RESULTS_MAX = 30, 1500, 4700
REPLY_TOKENS = 32
JSON_CHARS = 5.0  # a token, of these tools
SIDE_CALLS = 0.25  # of the turns, each followed by one
TOOLS = ("read_file", "write_file", "list_folder", "search_text", "run_command", "fetch_page")
TITLE = "You write titles. Answer with a title of at most five words for the text that follows."

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """What one agent says, whatever it is answered. `native`: the template knows tools."""

    name: str
    native: bool
    system: str
    tools: Sequence[Body]
    task: str
    results: Sequence[str]  # of the tools, from the second turn on


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be: `turn` counts from 1; `side` asks for a title of what came before it."""

    agent: Agent
    turn: int
    side: bool


@dataclass(slots=True)
class Chat:
    """An agent's conversation with one server, whose own replies it holds."""

    agent: Agent
    messages: list[Body] = field(default_factory=list)

    def ask(self, turn: int) -> list[Body]:
        """The messages of this turn's request."""
        agent = self.agent
        if turn == 1:
            self.messages.append({"role": "system", "content": agent.system})
            self.messages.append({"role": "user", "content": agent.task})
        elif agent.native:
            call = {"role": "tool", "tool_call_id": _call_id(turn)}
            self.messages.append({**call, "content": agent.results[turn - 2]})
        else:
            text = f"Result of the tool:\n{agent.results[turn - 2]}"
            self.messages.append({"role": "user", "content": text})
        return list(self.messages)

    def answered(self, turn: int, reply: str) -> None:
        message: Body = {"role": "assistant", "content": reply}
        if self.agent.native:
            name = TOOLS[turn % len(TOOLS)]
            arguments = json.dumps({"path": f"{WORDS[turn % len(WORDS)]}/{turn}.txt"})
            function = {"name": name, "arguments": arguments}
            message["tool_calls"] = [
                {"id": _call_id(turn + 1), "type": "function", "function": function}
            ]
        self.messages.append(message)

    def title(self, turn: int) -> list[Body]:
        """The messages of a side call after this turn."""
        said = self.agent.task if turn == 1 else self.agent.results[turn - 2]
        text = " ".join(said.split()[:40])
        return [{"role": "system", "content": TITLE}, {"role": "user", "content": text}]


def agents(count: int, turns: int, *, native: bool, seed: int) -> list[Agent]:
    return [_agent(f"{seed}.{index}", turns, native) for index in range(count)]


def schedule(agents: Sequence[Agent], turns: int, *, seed: int) -> list[Ask]:
    """Every agent's turns in order, the agents at random."""
    chance = random.Random(f"{seed}.order")
    order = [agent for agent in agents for _ in range(turns)]
    chance.shuffle(order)
    asked = dict.fromkeys((agent.name for agent in agents), 0)
    asks = []
    for agent in order:
        asked[agent.name] += 1
        asks.append(Ask(agent, asked[agent.name], side=False))
        if chance.random() < SIDE_CALLS:
            asks.append(Ask(agent, asked[agent.name], side=True))
    return asks


def conversation(
    messages: Sequence[Body], tools: Sequence[Body], *, thinking: bool | None
) -> Conversation:
    """As flm's server reads it."""

    def message(body: Body) -> Message:
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in body.get("tool_calls", ())
        )
        called = body.get("tool_call_id")
        return Message(body["role"], body["content"], tool_calls=calls, tool_call_id=called)

    return Conversation(tuple(map(message, messages)), tools=tuple(tools), thinking=thinking)


def _agent(name: str, turns: int, native: bool) -> Agent:
    chance = random.Random(name)
    tools = [_tool(tool, chance) for tool in TOOLS]
    listed = json.dumps(tools)
    # Words are a token each.
    system = f"You are agent {name}. " + _words(
        chance, SYSTEM_TOKENS - round(len(listed) / JSON_CHARS)
    )
    return Agent(
        name=name,
        native=native,
        system=system if native else f"{system}\nTools: {listed}",
        tools=tools if native else (),
        task=_words(chance, TASK_TOKENS),
        results=[_words(chance, length) for length in _lengths(chance, turns - 1)],
    )


def _lengths(chance: random.Random, count: int) -> list[int]:
    low, high = math.log(RESULT_MIN), math.log(RESULT_MAX)
    while True:
        lengths = [round(math.exp(chance.uniform(low, high))) for _ in range(count)]
        if sum(lengths) <= RESULTS_MAX:
            return lengths


def _tool(name: str, chance: random.Random) -> Body:
    path = {"type": "string", "description": _words(chance, 12)}
    function = {
        "name": name,
        "description": _words(chance, 40),
        "parameters": {"type": "object", "properties": {"path": path}, "required": ["path"]},
    }
    return {"type": "function", "function": function}


def _words(chance: random.Random, length: int) -> str:
    return " ".join(chance.choices(WORDS, k=length))


def _call_id(turn: int) -> str:
    return f"call_{turn}"


def salted(
    messages: Sequence[Body], tools: Sequence[Body], salt: str
) -> tuple[list[Body], list[Body]]:
    """The same with another beginning: nothing of such a prompt was read before."""
    system = {**messages[0], "content": f"{salt} {messages[0]['content']}"}
    functions = (
        {**tool["function"], "name": f"{salt}_{tool['function']['name']}"} for tool in tools
    )
    return [system, *messages[1:]], [{"type": "function", "function": each} for each in functions]
