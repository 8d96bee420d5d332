"""Traffic for bench.prefix: recorded, and made up from a seed.

A made-up prompt is token ids with the boundaries of a template whose past turns lose their
thoughts, as Qwen3.5's do: the *turn* lies where the reply to the last user message opens, the
*opener* where the next reply opens, the *end* behind the thought that begins there. Once a newer
user message stands there, the replies of the turn before are rendered anew, and so differ.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.prefix.boundaries import BoundaryFinder
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "tests" / "fixtures"
OPENING, THOUGHT = [1, 2, 3], [4, 5]  # what opens a reply, and its thought
REPLY_S = 4.0  # from a request to the end of its reply
TOOLS = (("read", 0.3, 0.6), ("search", 2.0, 0.3), ("test", 40.0, 0.1))  # name, mean s, share


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    prompt: Prompt
    agent: bool
    calls: tuple[str, ...] = ()  # the tools that its reply calls


@dataclass(slots=True)
class Talker:
    """A conversation as it grows: `past` stays as it is, `loop` is what the turn has so far."""

    random: Random
    agent: bool
    head: list[int]
    past: list[int] = field(default_factory=list)
    loop: list[int] = field(default_factory=list)

    def words(self, count: int) -> list[int]:
        return [self.random.randrange(10, 1 << 30) for _ in range(count)]

    def ask(self, count: int) -> None:
        """A new user message: what the turn before it has done loses its thoughts."""
        if self.loop:
            self.past += OPENING + self.words(max(1, len(self.loop) - 60))
        self.loop = []
        self.past += self.words(count)

    def reply(self, count: int) -> None:
        """What it said, and the result if it called a tool."""
        self.loop += OPENING + self.words(count)

    def prompt(self) -> Prompt:
        before = [*self.head, *self.past, *self.loop, *OPENING]
        turn = len(self.head) + len(self.past) + len(OPENING)
        places = {
            len(before): BoundaryKind.OPENER,
            len(before) + len(THOUGHT): BoundaryKind.END,
            turn: BoundaryKind.TURN,
            len(self.head): BoundaryKind.HEAD,
        }
        boundaries = (Boundary(at, places[at]) for at in sorted(places) if at)
        return Prompt((*before, *THOUGHT), tuple(boundaries))

    def arrival(self, at_s: float, *, calls: tuple[str, ...] = ()) -> Arrival:
        return Arrival(at_s, self.prompt(), self.agent, calls)


def merged(streams: Iterable[Iterable[Arrival]]) -> list[Arrival]:
    arrivals = [arrival for stream in streams for arrival in stream]
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def some(seed: object, count: int) -> list[int]:
    return Talker(Random(str(seed)), agent=True, head=[]).words(count)


def agent(name: str, head: list[int], *, start_s: float, turns: int = 24) -> Iterator[Arrival]:
    """Tool loops of six; results of 30 to 1,500 tokens; now and then a side call for a title."""
    random, at_s = Random(name), start_s
    talker = Talker(random, agent=True, head=head)
    for turn in range(turns):
        if turn % 6 == 0:
            talker.ask(random.randint(40, 300))
        else:
            talker.reply(80 + round(30 * 50 ** random.random()))
        called, pause_s = (), random.expovariate(1 / 20)
        if turn % 6 < 5 and turn + 1 < turns:
            (tool,) = random.choices(TOOLS, [share for *_, share in TOOLS])
            called, pause_s = tool[:1], random.expovariate(1 / tool[1])
        yield talker.arrival(at_s, calls=called)
        if random.random() < 0.15:
            yield from one_shot(random, some("title", 150), at_s + 1, random.randint(100, 500))
        at_s += REPLY_S + pause_s


def chat(name: str, head: list[int], *, start_s: float, turns: int) -> Iterator[Arrival]:
    """A person: a minute between messages, or hours; now and then a reply made again."""
    random, at_s = Random(name), start_s
    talker = Talker(random, agent=False, head=head)
    for _ in range(turns):
        talker.ask(round(20 * 40 ** random.random()))
        yield talker.arrival(at_s)
        if random.random() < 0.08:
            at_s += 20
            yield talker.arrival(at_s)
        talker.reply(random.randint(60, 600))
        at_s += random.expovariate(1 / 60) if random.random() < 0.8 else random.uniform(600, 7200)


def document(name: str, head: list[int], *, start_s: float) -> Iterator[Arrival]:
    """A long text and a few questions about it."""
    random, at_s = Random(name), start_s
    talker = Talker(random, agent=False, head=head)
    talker.past = talker.words(random.randint(6_000, 20_000))
    for _ in range(random.choice((1, 2, 3, 5))):
        talker.ask(random.randint(15, 60))
        yield talker.arrival(at_s)
        talker.reply(random.randint(100, 500))
        at_s += random.expovariate(1 / 90)


def one_shot(random: Random, head: list[int], at_s: float, count: int) -> Iterator[Arrival]:
    talker = Talker(random, agent=True, head=head)
    talker.ask(count)
    yield talker.arrival(at_s)


def agents(count: int, *, shared: bool) -> Callable[[int], list[Arrival]]:
    """`count` of them at a time, with 9K tokens of system prompt and tools, their own or shared."""

    def make(seed: int) -> list[Arrival]:
        random = Random(seed)
        return merged(
            agent(
                f"{seed} agent {each}",
                some(f"{seed} head {0 if shared else each}", 9_000),
                start_s=random.uniform(0, 40),
            )
            for each in range(count)
        )

    return make


def flood(seed: int) -> list[Arrival]:
    """One-shots alike but for 46 tokens (FastFlowLM#737), beside three agents and a person. What
    they share lies in the user message, where only a fork finds it.
    """
    random, shared = Random(seed), some(f"{seed} shots", 1_880)
    streams: list[Iterable[Arrival]] = []
    for _ in range(150):
        talker = Talker(random, agent=True, head=[], past=[*shared])
        talker.ask(46)
        streams.append([talker.arrival(random.uniform(20, 200))])
    for each in range(3):
        head = some(f"{seed} head {each}", 4_000)
        streams.append(agent(f"{seed} agent {each}", head, start_s=7 * each))
    streams.append(chat(f"{seed} chat", some(f"{seed} chat", 800), start_s=0, turns=10))
    return merged(streams)


def chats(seed: int) -> list[Arrival]:
    random, head = Random(seed), some(seed, 700)
    return merged(
        chat(
            f"{seed} chat {each}",
            head,
            start_s=random.uniform(0, 6 * 3600),
            turns=random.randint(2, 16),
        )
        for each in range(24)
    )


def documents(seed: int) -> list[Arrival]:
    """Thirty in an hour, and three people who talk of other things."""
    random, head = Random(seed), some(seed, 700)
    streams = [
        document(f"{seed} document {each}", head, start_s=random.uniform(0, 3600))
        for each in range(30)
    ]
    streams += [
        chat(f"{seed} chat {each}", head, start_s=random.uniform(0, 1800), turns=10)
        for each in range(3)
    ]
    return merged(streams)


def mixed(seed: int) -> list[Arrival]:
    """Four people, six agents of three sorts, and one-shots between."""
    random = Random(seed)
    streams = [
        chat(f"{seed} chat {each}", some(seed, 900), start_s=random.uniform(0, 300), turns=12)
        for each in range(4)
    ]
    for each in range(6):
        head = some(f"{seed} head {each // 2}", 6_000)
        streams.append(agent(f"{seed} agent {each}", head, start_s=random.uniform(0, 1200)))
    head = some(f"{seed} shots", 900)
    streams += [
        one_shot(random, head, random.uniform(0, 1500), random.randint(60, 2_000))
        for _ in range(30)
    ]
    return merged(streams)


def hermes(seed: int) -> list[Arrival]:
    """What the Hermes agent sent (bench/traces), each scenario three times in a seed's order, the
    later times with other user messages; ten times as slow, for its models answered at once.
    """
    random, lines = Random(seed), recorded()
    template, tokenizer = small_vocabulary()
    finder = BoundaryFinder(template, tokenizer)
    arrivals = []
    for scenario in sorted({line["scenario"] for line in lines}):
        of_it = [line for line in lines if line["scenario"] == scenario]
        for time in range(3):
            start_s = random.uniform(0, 30)
            for line in of_it:
                prompt = finder.find(conversation(line["body"], time), now=datetime(2026, 1, 1))
                at_s, calls = start_s + 10 * line["at_s"], called(line, of_it)
                arrivals.append(Arrival(at_s, prompt, agent=True, calls=calls))
    return merged([arrivals])


def called(line: dict[str, Any], lines: list[dict[str, Any]]) -> tuple[str, ...]:
    """The tools that its reply called, as what went on from it has them."""
    messages = line["body"]["messages"]
    for later in (each["body"]["messages"] for each in lines):
        if len(later) > len(messages) and later[: len(messages)] == messages:
            calls = later[len(messages)].get("tool_calls") or ()
            return tuple(call["function"]["name"] for call in calls)
    return ()


def recorded() -> list[dict[str, Any]]:
    with gzip.open(HERE / "traces" / "hermes.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def small_vocabulary() -> tuple[ChatTemplate, Tokenizer]:
    """The tests' own, so that nothing need be fetched."""
    source = (FIXTURES / "templates" / "tools_first.jinja").read_text()
    template = ChatTemplate(source, bos_token="", eos_token="<|im_end|>")
    return template, Tokenizer.load(FIXTURES / "tokenizer")


def conversation(body: dict[str, Any], time: int) -> Conversation:
    messages = []
    for message in body["messages"]:
        calls = [
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
        content = message.get("content")
        if message["role"] == "user" and time:
            content = f"({time}) {content}"
        messages.append(
            Message(
                message["role"],
                content,
                tool_calls=tuple(calls),
                tool_call_id=message.get("tool_call_id"),
                name=message.get("name"),
            )
        )
    return Conversation(tuple(messages), tuple(body.get("tools", ())))


TRAFFIC: dict[str, Callable[[int], list[Arrival]]] = {
    "hermes": hermes,
    "agents, 6 sharing": agents(6, shared=True),
    "agents, 6 alone": agents(6, shared=False),
    "agents, 12 sharing": agents(12, shared=True),
    "flood": flood,
    "chats": chats,
    "documents": documents,
    "mixed": mixed,
}
