"""SmolLM2-135M over HTTP beside llama.cpp: prefill, decode, four streams, warm turns, memory.

    python -m bench.chat [--rounds 5] [--only prefill,decode]

Both servers run at once on the same GGUF with the same threads, and take turns: each round asks
one, then the other, so that what else the machine does falls on both. Medians are compared.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from bench.client import Client, Timed
from bench.rows import ROOT, keep
from bench.servers import Server, flm_server, llama_cpp_server
from flm.devices.machine import cores_physical
from flm.hub.pull import pull
from flm.settings import Settings

LANES, CONTEXT, TURNS = 4, 8192, 8
LENGTHS, LAST = (512, 1024, 2048, 4096, 7680), 64
WORDS = """
river stone cloud lantern market winter silver bridge garden window letter morning coffee engine
harbour paper village mountain summer kitchen doctor music forest island candle train
""".split()  # noqa: SIM905
_seeds = count(1)


@dataclass(frozen=True, slots=True)
class Sides:
    """The two that are compared, and how often."""

    ours: Client
    peer: Client
    rounds: int
    server: Server
    gguf: Path

    def medians(self, measure: Callable[[Client, int], float]) -> tuple[float, float]:
        """`measure` takes a client and a seed, the same for both sides of a round."""
        ours, peer = [], []
        for _ in range(self.rounds):
            seed = next(_seeds)
            ours.append(measure(self.ours, seed))
            peer.append(measure(self.peer, seed))
        return statistics.median(ours), statistics.median(peer)


def tokens_of(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000, 40_000), k=length)


def words_of(length: int, seed: int) -> str:
    """Text of about `length` tokens: these words are one each."""
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def prefill(sides: Sides) -> None:
    """Tokens a second over a prompt never seen before."""
    for length in (512, 2048):

        def measure(client: Client, seed: int, length: int = length) -> float:
            return length / client.complete(tokens_of(length, seed), 1).first_s

        ours, peer = sides.medians(measure)
        keep("chat", f"prefill {length}", flm=ours, llama_cpp=peer, ratio=ours / peer, least=2.0)


def decode(sides: Sides) -> None:
    """Tokens a second after a 512-token prompt, one stream."""

    def measure(client: Client, seed: int) -> float:
        return client.complete(tokens_of(512, seed), 128, ignore_eos=True).tokens_per_s

    ours, peer = sides.medians(measure)
    keep("chat", "decode at 512", flm=ours, llama_cpp=peer, ratio=ours / peer, least=1.0)


def streams(sides: Sides) -> None:
    """Summed tokens a second of four streams, from the last first token to the first end."""

    def measure(client: Client, seed: int) -> float:
        def one(index: int) -> Timed:
            return client.complete(tokens_of(512, 100 * seed + index), 128, ignore_eos=True)

        with ThreadPoolExecutor(LANES) as pool:
            start = time.perf_counter()
            starts_and_results = list(
                pool.map(lambda i: (time.perf_counter() - start, one(i)), range(LANES))
            )
        begin = max(at + timed.first_s for at, timed in starts_and_results)
        end = min(at + timed.arrivals_s[-1] for at, timed in starts_and_results)
        arrived = sum(
            begin < at + arrival <= end
            for at, timed in starts_and_results
            for arrival in timed.arrivals_s
        )
        return arrived / (end - begin)

    ours, peer = sides.medians(measure)
    keep(
        "chat",
        "four streams, summed decode",
        flm=ours,
        llama_cpp=peer,
        ratio=ours / peer,
        least=1.3,
    )


def second_turn(sides: Sides) -> None:
    """TTFT of turn two: 4K-token prompt, 32-token reply, 512-token new message."""

    def measure(client: Client, seed: int) -> float:
        messages = [
            {"role": "system", "content": words_of(2000, seed)},
            {"role": "user", "content": words_of(2060, seed + 10_000)},
        ]
        reply = client.chat(messages, 32, ignore_eos=True)
        messages += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": words_of(505, seed + 20_000)},
        ]
        return client.chat(messages, 1).first_s

    ours, peer = sides.medians(measure)
    keep("chat", "second turn TTFT", flm=ours, llama_cpp=peer, ratio=ours / peer, most=0.55)


def conversation(sides: Sides) -> None:
    """TTFT of each turn of a chat with a 2K system prompt; and of flm that keeps nothing."""
    threads = cores_physical()
    flags = ("--reuse-prompt", "off")
    with flm_server(str(sides.gguf), threads=threads, lanes=LANES, flags=flags) as forgetful:
        clients = {"flm": sides.ours, "llama_cpp": sides.peer, "cold": Client(forgetful.url)}
        seed = next(_seeds)
        firsts: dict[str, list[float]] = {name: [] for name in clients}
        system = {"role": "system", "content": words_of(2000, seed)}
        chats: dict[str, list[dict[str, str]]] = {name: [system] for name in clients}
        for turn in range(TURNS):
            for name, client in clients.items():
                content = words_of(200, 1000 * seed + turn)
                chats[name].append({"role": "user", "content": content})
                reply = client.chat(chats[name], 32, ignore_eos=True)
                chats[name].append({"role": "assistant", "content": reply.text})
                firsts[name].append(reply.first_s)
    later = {name: statistics.mean(values[1:]) for name, values in firsts.items()}
    ratio = later["flm"] / later["llama_cpp"]
    keep("chat", "conversation TTFT", turns=firsts, ratio=ratio, **later)


def resend(sides: Sides) -> None:
    """TTFT of an identical 4K-token prompt, over the peer's floor for a one-token prompt."""
    floor = statistics.median(
        sides.peer.complete(tokens_of(1, next(_seeds)), 1).first_s for _ in range(sides.rounds)
    )

    def measure(client: Client, seed: int) -> float:
        prompt = tokens_of(4096, seed)
        client.complete(prompt, 4, ignore_eos=True)
        return client.complete(prompt, 1).first_s

    ours, peer = sides.medians(measure)
    over_ms = 1000 * (ours - floor)
    keep(
        "chat",
        "identical resend TTFT",
        flm=ours,
        llama_cpp=peer,
        floor=floor,
        over_ms=over_ms,
        most_ms=30,
    )


def lengths(sides: Sides) -> None:
    """TTFT of prompts of several lengths: cold, and with all but the last 64 tokens read before."""
    for length in LENGTHS:

        def cold(client: Client, seed: int, length: int = length) -> float:
            return client.complete(tokens_of(length, seed), 1).first_s

        def warm(client: Client, seed: int, length: int = length) -> float:
            begin = tokens_of(length - LAST, seed)
            client.complete([*begin, *tokens_of(LAST, seed + 1000)], 1)
            client.complete([*begin, *tokens_of(LAST, seed + 2000)], 1)  # where it parts is kept
            return client.complete([*begin, *tokens_of(LAST, seed + 3000)], 1).first_s

        for name, measure in (("cold", cold), ("warm", warm)):
            ours, peer = sides.medians(measure)
            keep("chat", f"TTFT of {length}, {name}", flm=ours, llama_cpp=peer, ratio=ours / peer)


def start_up(sides: Sides) -> None:
    """Seconds that `flm list` takes, the best of several starts; Python's own start beside it."""

    def fastest(*command: str) -> float:
        def once() -> float:
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
            return time.perf_counter() - start

        return min(once() for _ in range(2 * sides.rounds))

    keep(
        "chat", "flm list, s", took=fastest("-m", "flm", "list"), python=fastest("-c", ""), most=0.3
    )


def memory(sides: Sides) -> None:
    """Bytes of an idle server, freshly started, against the GGUF's."""
    size = sides.gguf.stat().st_size
    with flm_server(str(sides.gguf), threads=cores_physical(), lanes=LANES) as fresh:
        Client(fresh.url).chat([{"role": "user", "content": "hi"}], 4)
        kib = {
            line.split()[0].rstrip(":"): int(line.split()[1])
            for line in Path(f"/proc/{fresh.pid}/smaps_rollup").read_text().splitlines()[1:]
        }
    anonymous, resident = 1024 * kib["Anonymous"] / size, 1024 * kib["Rss"] / size
    keep("chat", "idle memory, x the GGUF", anonymous=anonymous, resident=resident, most=[2.5, 4.0])


FIGURES = (
    prefill,
    decode,
    streams,
    second_turn,
    conversation,
    resend,
    lengths,
    start_up,
    memory,
)


@contextmanager
def both(rounds: int) -> Iterator[Sides]:
    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    gguf = pull("smollm2:135m", settings, progress=lambda *_: None)
    threads = cores_physical()
    with (
        flm_server(str(gguf), threads=threads, lanes=LANES) as ours,
        llama_cpp_server(gguf, threads=threads, slots=LANES, context=LANES * CONTEXT) as peer,
    ):
        yield Sides(Client(ours.url), Client(peer.url), rounds, ours, gguf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="figures, by function name, with commas")
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    with both(given.rounds) as sides:
        for side in (sides.ours, sides.peer):
            side.complete(tokens_of(256, 0), 16, ignore_eos=True)
        for figure in FIGURES:
            if not only or figure.__name__ in only:
                figure(sides)


if __name__ == "__main__":
    main()
