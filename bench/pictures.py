"""Pictures beside llama.cpp's mtmd, on random weights: half of Qwen3.5 0.8B, and its picture tower.

    python -m bench.pictures [--only encoded,turns,agents,beside,towers] [--type F16] [--rounds 3]

Both servers run at once on the same two files with the same threads, and take turns. A picture is
new each round. *Encoded*: from pixels to rows; flm counts that itself (/metrics), of llama.cpp it
is the time between the two lines of its log around it. *Turns*: the first token of a question about
a picture, and of the one after it. *Agents*: two, each with a picture of its own, turn about in one
lane: what is kept of each, and how often a tower ran. *Beside*: what becomes of a reply while a
picture of somebody else is looked at: tokens a second, and the longest without any. *Towers*:
those of other families (bench/looks.py).
"""

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import httpx
import numpy as np

from bench.client import Client
from bench.likes import LIKES
from bench.looks import towers
from bench.random_models import write
from bench.rows import ROOT, keep
from bench.seen import Message, about, new_picture, peer_encoded_s
from bench.servers import Server, flm_server, llama_cpp_server
from bench.shapes import FOLDER
from bench.towers import TYPES, TowerLike, write_tower
from flm.devices.machine import cores_physical
from flm.graph.weights.gguf import GgufFile
from flm.hub.pull import pull
from flm.settings import Settings

PARTS = ("encoded", "turns", "agents", "beside", "towers")
SIDES, BESIDE_SIDE = (448, 768, 1024), 768
LONG, ALONE_S = 1500, 2.0  # tokens of the reply beside, and how long it is alone at first
ENCODED_LEAST, SECOND_TURN_MOST = 1.0, 0.1
CONTEXT, TURNS = 4096, 6
REPLY = 64  # as many tokens as are read ahead; of a shorter reply the next turn reads all
WHOLE = ("--img-pre-resize", "0", "--ctx-len", str(CONTEXT))  # as large as they come
QUESTIONS = ("What is it?", "And what is behind it?", "Which colour has the most of it?")


@dataclass(frozen=True, slots=True)
class Sides:
    """Both servers, at work on the same files."""

    ours: Server
    peer: Server
    log: Path  # of the peer's

    @property
    def encoded(self) -> tuple[int, float]:
        """Pictures that flm's tower has seen, and the seconds that took."""
        text = httpx.get(self.ours.url + "/metrics").text
        found = dict(re.findall(r"^(flm_pictures_encod\w+) (\S+)$", text, re.MULTILINE))
        return int(float(found["flm_pictures_encoded_total"])), float(
            found["flm_pictures_encoding_seconds_total"]
        )


@contextmanager
def served(type: str, vocabulary: GgufFile, *, lanes: int = 1) -> Iterator[Sides]:
    like = replace(LIKES["qwen35"], sees=True)
    threads = cores_physical()
    with tempfile.TemporaryDirectory(dir=FOLDER) as place:
        folder = Path(place)
        gguf, log = folder / "qwen35.gguf", folder / "peer.log"
        write(gguf, like, like.type, vocabulary)
        tower = write_tower(folder / "mmproj.gguf", TowerLike(), type)
        peer = llama_cpp_server(
            gguf, threads=threads, slots=lanes, context=lanes * CONTEXT, log=log, tower=tower
        )
        ours = flm_server(str(gguf), threads=threads, lanes=lanes, flags=WHOLE, home=folder)
        with ours as our_server, peer as peer_server:
            yield Sides(our_server, peer_server, log)


def asked(side: int, question: str) -> Message:
    """About a picture that nobody has seen before."""
    return about(new_picture(side), question)


def encoded(sides: Sides, type: str, rounds: int) -> None:
    clients = [Client(each.url) for each in (sides.ours, sides.peer)]
    for client in clients:
        client.chat([asked(64, QUESTIONS[0])], 1)
    for side in SIDES:
        ours, theirs, tokens = [], [], []
        for _ in range(rounds):
            message = asked(side, QUESTIONS[0])
            _, before_s = sides.encoded
            timed = [client.chat([message], 1) for client in clients]
            ours.append(sides.encoded[1] - before_s)
            theirs.append(peer_encoded_s(sides.log))
            tokens.append([each.usage["prompt_tokens"] for each in timed])
        keep(
            "pictures",
            f"encoded {side}x{side}, {type}",
            tokens=tokens[0][0],
            tokens_llama_cpp=tokens[0][1],
            flm_s=statistics.median(ours),
            llama_cpp_s=statistics.median(theirs),
            ratio=statistics.median(theirs) / statistics.median(ours),
            least=ENCODED_LEAST,
            flm_all_s=ours,
            llama_cpp_all_s=theirs,
        )


def turns(sides: Sides, type: str, rounds: int) -> None:
    servers = (sides.ours, sides.peer)
    clients = [Client(each.url) for each in servers]
    for side in SIDES:
        first: list[list[float]] = [[], []]
        second: list[list[float]] = [[], []]
        for _ in range(rounds):
            message = asked(side, QUESTIONS[0])
            for index, (client, server) in enumerate(zip(clients, servers, strict=True)):
                server.rest()
                cold = client.chat([message], REPLY)
                first[index].append(cold.first_s)
                said = {"role": "assistant", "content": cold.text}
                asks = {"role": "user", "content": QUESTIONS[1]}
                server.rest()
                second[index].append(client.chat([message, said, asks], REPLY).first_s)
        cold_s, warm_s = ([statistics.median(each) for each in both] for both in (first, second))
        keep(
            "pictures",
            f"second turn over {side}x{side}, {type}",
            flm_cold=cold_s[0],
            flm_second=warm_s[0],
            flm_ratio=warm_s[0] / cold_s[0],
            most=SECOND_TURN_MOST,
            llama_cpp_cold=cold_s[1],
            llama_cpp_second=warm_s[1],
            llama_cpp_ratio=warm_s[1] / cold_s[1],
        )


def agents(sides: Sides, type: str) -> None:
    """Of flm alone."""
    client, side = Client(sides.ours.url), SIDES[0]
    histories = [[asked(side, QUESTIONS[0])] for _ in range(2)]
    before, _ = sides.encoded
    cached, whole, first_s = [], [], []
    for turn in range(TURNS):
        for history in histories:
            reply = client.chat(history, REPLY)
            history.append({"role": "assistant", "content": reply.text})
            question = QUESTIONS[(turn + 1) % len(QUESTIONS)]
            history.append({"role": "user", "content": question})
            cached.append(reply.usage["prompt_tokens_details"]["cached_tokens"])
            whole.append(reply.usage["prompt_tokens"])
            first_s.append(reply.first_s)
    keep(
        "pictures",
        f"two agents, two pictures of {side}x{side}, {type}",
        turns=TURNS,
        encoded=sides.encoded[0] - before,
        encoded_most=len(histories),
        later_share_cached=sum(cached[2:]) / sum(whole[2:]),
        later_ratio=statistics.median(first_s[2:]) / statistics.median(first_s[:2]),
        cached_tokens=cached,
        prompt_tokens=whole,
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """A reply, before and while a picture is looked at: tokens a second, and seconds."""

    alone: float
    beside: float
    longest_s: float
    picture_s: float  # to the first token about it


def beside(sides: Sides, type: str, rounds: int) -> None:
    clients = [Client(each.url) for each in (sides.ours, sides.peer)]
    found: list[list[Beside]] = [[], []]
    for number in range(rounds):
        for index, (client, server) in enumerate(
            zip(clients, (sides.ours, sides.peer), strict=True)
        ):
            server.rest()
            found[index].append(_both(client, number))
    row: dict[str, float] = {}
    for name, side in zip(("flm", "llama_cpp"), found, strict=True):
        for figure in fields(Beside):
            values = [getattr(each, figure.name) for each in side]
            row[f"{name}_{figure.name}"] = statistics.median(values)
    keep("pictures", f"a reply beside a picture of {BESIDE_SIDE}x{BESIDE_SIDE}, {type}", **row)


def _both(client: Client, number: int) -> Beside:
    began = time.perf_counter()
    tell = [{"role": "user", "content": f"Tell me story number {number}, a long one."}]
    with ThreadPoolExecutor(1) as thread:
        telling = thread.submit(client.chat, tell, LONG, ignore_eos=True)
        time.sleep(ALONE_S)
        shown = time.perf_counter() - began
        looked_s = client.chat([asked(BESIDE_SIDE, QUESTIONS[0])], 1).first_s
        told = telling.result()
    seen = shown + looked_s
    if told.arrivals_s[-1] < seen:
        raise SystemExit("the reply ended before the picture was looked at")
    arrivals = [told.first_s, *(each for each in told.arrivals_s if each < seen)]
    gaps = np.diff([each for each in told.arrivals_s if shown <= each <= seen + ALONE_S])
    alone = [each for each in arrivals if each < shown]
    return Beside(
        alone=(len(alone) - 1) / (alone[-1] - alone[0]),
        beside=sum(each >= shown for each in arrivals) / looked_s,
        longest_s=float(gaps.max()),
        picture_s=looked_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--type", choices=TYPES, help="of the tower's matrices")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    parts = given.only.split(",")
    if unknown := set(parts).difference(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}")
    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    vocabulary = GgufFile(pull("smollm2:135m", settings, progress=lambda *_: None))
    FOLDER.mkdir(parents=True, exist_ok=True)
    if "towers" in parts:
        towers(vocabulary, given.rounds)
    for type in [given.type] if given.type else TYPES:
        if parts == ["towers"]:
            break
        again = given.type is None and type != TYPES[0]  # what hangs on nothing but the rows
        with served(type, vocabulary) as sides:
            if "encoded" in parts:
                encoded(sides, type, given.rounds)
            if "turns" in parts and not again:
                turns(sides, type, given.rounds)
            if "agents" in parts and not again:
                agents(sides, type)
        if "beside" in parts and not again:
            with served(type, vocabulary, lanes=2) as sides:
                beside(sides, type, given.rounds)


if __name__ == "__main__":
    main()
