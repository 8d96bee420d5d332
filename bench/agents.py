"""Six interleaved agents over HTTP beside llama.cpp: what a turn waits for, and what is read again.

    python -m bench.agents [--model smollm2|qwen35] [--agents 6] [--turns 10] [--quick]
                           [--only turns,restart] [--alone] [--verbose]

One request at a time, each sent to flm and to two llama.cpp servers in turns: one with a slot an
agent, one with two slots; both with its prompt cache in RAM and its context checkpoints as they are
by default. Each side hears its own replies again, and rests before another is asked. --quick is for
trying things out: few turns, and models so small that only what was read means anything, not how
long it took.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.client import Client, Timed
from bench.reread import Reading, unavoidable
from bench.rows import ROOT, keep
from bench.servers import DISK, Server, flm_server, llama_cpp_server
from bench.shapes import FOLDER, TINY, qwen35, shortened
from bench.workload import REPLY_TOKENS, Agent, Ask, Body, Chat, agents, salted, schedule
from flm.devices.machine import cores_physical
from flm.hub.pull import pull
from flm.settings import Settings

LANES, SLOTS_FEW, SEED = 4, 2, 7
EXCESS_SHOWN = 12  # requests that read most beyond what they had to
READ_AGAIN_MOST, RESTART_MOST = 1.05, 0.2
QUICK_LAYERS, QUICK_TURNS = 2, 4


@dataclass(frozen=True, slots=True)
class Model:
    """`native`: its template knows tools, else they stand in the system prompt."""

    name: str
    gguf: Path
    native: bool
    context: int  # of each lane and slot
    turns: int  # unless told otherwise
    most: float  # of llama.cpp's time to the first token of a later turn

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--ctx-len", str(self.context))


@dataclass(frozen=True, slots=True)
class Record:
    """How one request went. `prompt` and `cached` are tokens, by the usage."""

    ask: Ask
    first_s: float
    prompt: int
    cached: int
    messages: Sequence[Body]

    @property
    def later(self) -> bool:
        return not self.ask.side and self.ask.turn > 1


@dataclass(slots=True)
class Side:
    """One server, and the agents' conversations with it."""

    name: str
    server: Server
    chats: dict[str, Chat] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def send(self, ask: Ask) -> Record:
        agent = ask.agent
        chat = self.chats.setdefault(agent.name, Chat(agent))
        messages = chat.title(ask.turn) if ask.side else chat.ask(ask.turn)
        timed = self.time(messages, () if ask.side else agent.tools, native=agent.native)
        usage = timed.usage
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        self.server.rest()
        record = Record(ask, timed.first_s, int(usage["prompt_tokens"]), cached, messages)
        self.records.append(record)
        if not ask.side:
            chat.answered(ask.turn, timed.text)
        return record

    def time(self, messages: Sequence[Body], tools: Sequence[Body], *, native: bool) -> Timed:
        fields: dict[str, Any] = {"ignore_eos": True}
        if native:
            fields["chat_template_kwargs"] = {"enable_thinking": False}
        if tools:
            fields["tools"] = list(tools)
        timed = Client(self.server.url).chat(list(messages), REPLY_TOKENS, **fields)
        assert timed.usage["completion_tokens"] == REPLY_TOKENS, (self.name, timed)
        return timed


@dataclass(frozen=True, slots=True)
class Run:
    model: Model
    agents: int
    turns: int
    quick: bool
    alone: bool
    verbose: bool

    def people(self) -> list[Agent]:
        return agents(self.agents, self.turns, native=self.model.native, seed=SEED)

    @property
    def about(self) -> dict[str, Any]:
        return {"agents": self.agents, "turns": self.turns, "quick": self.quick}


def turns(run: Run) -> None:
    """Later turns' time to first token, and what flm reads again."""
    asks = schedule(run.people(), run.turns, seed=SEED)
    with _three(run) as sides:
        for number, ask in enumerate(asks):
            first = number % len(sides)
            for side in (*sides[first:], *sides[:first]):
                record = side.send(ask)
                if run.verbose:
                    _show(side, record)
    ours, *peers = sides
    for peer in peers:
        _keep_first_tokens(run, ours, peer)
    _keep_read_again(run, ours)


def _keep_first_tokens(run: Run, ours: Side, peer: Side) -> None:
    values: dict[str, Any] = {}
    for name, side in (("flm", ours), ("llama_cpp", peer)):
        later = [record.first_s for record in side.records if record.later]
        values |= {
            name: statistics.mean(later),
            f"{name}_median": statistics.median(later),
            f"{name}_prompt_tokens": sum(record.prompt for record in side.records),
            f"{name}_cached_tokens": sum(record.cached for record in side.records),
            f"{name}_first_turns": statistics.mean(
                record.first_s
                for record in side.records
                if not record.ask.side and record.ask.turn == 1
            ),
            f"{name}_later_s": later,
        }
    ratio = values["flm"] / values["llama_cpp"]
    figure = f"{run.model.name}: later turns TTFT, {peer.name}"
    keep("agents", figure, ratio=ratio, most=run.model.most, **values, **run.about)


def _keep_read_again(run: Run, ours: Side) -> None:
    """Tokens read, over those that a cache without bounds would have read."""
    prompts = [
        (record.messages, () if record.ask.side else record.ask.agent.tools)
        for record in ours.records
    ]
    floors = unavoidable(run.model.gguf, prompts, native=run.model.native)
    for record, floor in zip(ours.records, floors, strict=True):
        assert record.prompt == floor.prompt, "rendered other than the server did"
    read = sum(record.prompt - record.cached for record in ours.records)
    by_cuts = sum(floor.by_cuts for floor in floors)
    by_tokens = sum(floor.by_tokens for floor in floors)
    keep(
        "agents",
        f"{run.model.name}: tokens read, over the unavoidable",
        ratio=read / by_cuts,
        most=READ_AGAIN_MOST,
        read=read,
        unavoidable=by_cuts,
        unavoidable_by_token=by_tokens,
        prompt_tokens=sum(record.prompt for record in ours.records),
        worst=_worst(ours.records, floors),
        **run.about,
    )


def _worst(records: Sequence[Record], floors: Sequence[Reading]) -> list[str]:
    def excess(pair: tuple[Record, Reading]) -> int:
        record, floor = pair
        return record.prompt - record.cached - floor.by_cuts

    ranked = sorted(zip(records, floors, strict=True), key=excess, reverse=True)
    lines = [
        f"{_what(record.ask)}: read {record.prompt - record.cached} of {record.prompt}, "
        f"{floor.by_cuts} by cuts, {floor.by_tokens} by tokens"
        for record, floor in ranked[:EXCESS_SHOWN]
        if excess((record, floor)) > 0
    ]
    print(*lines, sep="\n", flush=True)
    return lines


def restart(run: Run) -> None:
    """flm stopped and started again over the same folder before every agent's last turn: the first
    that each takes then, over the same turns cold.
    """
    before = run.turns - 1
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        flags = (*run.model.flags, DISK, folder)
        chats: dict[str, Chat] = {}
        with _ours(run, "flm before", flags) as side:
            side.chats = chats
            for ask in schedule(run.people(), before, seed=SEED):
                side.send(ask)
        with _ours(run, "flm again", flags) as side:
            side.chats = chats
            pairs = [_warm_and_cold(run, side, chat, before + 1) for chat in chats.values()]
    warm, cold = (statistics.mean(seconds) for seconds in zip(*pairs, strict=True))
    keep(
        "agents",
        f"{run.model.name}: first turns after a restart, TTFT",
        ratio=warm / cold,
        most=RESTART_MOST,
        flm=warm,
        cold=cold,
        prompt_tokens=sum(record.prompt for record in side.records),
        cached_tokens=sum(record.cached for record in side.records),
        pairs=pairs,
        **run.about | {"turns": before + 1},
    )


def _warm_and_cold(run: Run, side: Side, chat: Chat, turn: int) -> tuple[float, float]:
    record = side.send(Ask(chat.agent, turn, side=False))
    if run.verbose:
        _show(side, record)
    messages, tools = salted(record.messages, chat.agent.tools, f"cold{turn}")
    return record.first_s, side.time(messages, tools, native=run.model.native).first_s


FIGURES: tuple[Callable[[Run], None], ...] = (turns, restart)


@contextmanager
def _three(run: Run) -> Iterator[list[Side]]:
    """flm, and llama.cpp with as many slots as agents, and with few."""
    model, threads = run.model, cores_physical()
    with ExitStack() as stack:
        empty = stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))
        sides = [stack.enter_context(_ours(run, "flm", (*model.flags, DISK, empty)))]
        for slots in () if run.alone else (run.agents, SLOTS_FEW):
            log = _log(run, f"llama-{slots}")
            peer = llama_cpp_server(
                model.gguf, threads=threads, slots=slots, context=slots * model.context, log=log
            )
            server = stack.enter_context(peer)
            said = log.read_text(errors="replace")
            assert "prompt cache is enabled" in said, log
            assert "checkpoints enabled" in said, log
            sides.append(Side(f"{slots} slots", server))
            _warm_up(sides[-1])
        yield sides


@contextmanager
def _ours(run: Run, name: str, flags: Sequence[str]) -> Iterator[Side]:
    gguf, threads = str(run.model.gguf), cores_physical()
    log = _log(run, name.replace(" ", "-"))
    with flm_server(gguf, threads=threads, lanes=LANES, flags=flags, log=log) as server:
        side = Side(name, server)
        _warm_up(side)
        yield side


def _warm_up(side: Side) -> None:
    Client(side.server.url).complete(list(range(1000, 1256)), 4, ignore_eos=True)


def _log(run: Run, name: str) -> Path:
    log = FOLDER / "logs" / f"{run.model.name}-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    return log


def _show(side: Side, record: Record) -> None:
    print(
        f"{side.name:10} {_what(record.ask):16} first {record.first_s:7.3f} s"
        f"  prompt {record.prompt:5}  read {record.prompt - record.cached:5}",
        flush=True,
    )


def _what(ask: Ask) -> str:
    return f"{ask.agent.name} {'title' if ask.side else 'turn'} {ask.turn}"


def _model(name: str, *, quick: bool) -> Model:
    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    smollm2 = pull("smollm2:135m", settings, progress=lambda *_: None)
    if name == "smollm2":
        gguf = shortened(smollm2, QUICK_LAYERS) if quick else smollm2
        return Model(name, gguf, native=False, context=8192, turns=10, most=0.5)
    gguf = qwen35(smollm2, shape=TINY) if quick else qwen35(smollm2)
    # Ten turns take half an hour here: llama.cpp reads some 500 tokens again in each.
    return Model(name, gguf, native=True, context=16_384, turns=4, most=0.33)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("smollm2", "qwen35"), default="smollm2")
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument(
        "--turns",
        type=int,
        choices=range(2, 11),
        metavar="N",
        default=None,
        help="10; of qwen35, or quick, 4",
    )
    parser.add_argument("--quick", action="store_true", help="few turns, and a tiny model")
    parser.add_argument("--only", default="", help="figures, by function name, with commas")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--verbose", action="store_true", help="a line a request")
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    model = _model(given.model, quick=given.quick)
    rounds = given.turns or (QUICK_TURNS if given.quick else model.turns)
    FOLDER.mkdir(parents=True, exist_ok=True)
    run = Run(model, given.agents, rounds, given.quick, given.alone, given.verbose)
    for figure in FIGURES:
        if not only or figure.__name__ in only:
            figure(run)


if __name__ == "__main__":
    main()
