"""Prefill and decode of every family beside llama.cpp, on random weights of 0.3 to 0.8B:

    python -m bench.families [--only llama,qwen3] [--type Q4_0] [--rounds 3]

or, if asked for, of four billion: --only qwen35-4b.

Both servers run at once on the same file with the same threads, and take turns: a prompt of 512
tokens never seen before, then 64 tokens decoded. Medians are compared. A family's file is written
into .cache/bench, and removed with its bundle before the next one's.
"""

import argparse
import statistics
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path

from bench.chat import tokens_of
from bench.client import Client, Timed
from bench.likes import LARGE, LIKES, Like
from bench.random_models import write
from bench.rows import ROOT, keep
from bench.servers import flm_server, llama_cpp_server
from bench.shapes import FOLDER
from flm.devices.machine import cores_physical
from flm.graph.weights.gguf import GgufFile
from flm.hub.pull import pull
from flm.settings import Settings

PROMPT, REPLY, CONTEXT = 512, 64, 2048
WARM_UP = 256, 16
PREFILL_LEAST = 1.5
DECODE_LEAST = {"Q4_0": 0.95, "Q4_K_M": 0.95, "MXFP4": 0.8}  # MXFP4 takes eight bits here
FORGETFUL = ("--reuse-prompt", "off", "--read-ahead", "off", "--ctx-len", str(CONTEXT))
_seeds = count(1)


def measure(family: str, like: Like, type: str, rounds: int, vocabulary: GgufFile) -> None:
    threads = cores_physical()
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        gguf = Path(folder) / f"{family}.{type}.gguf"
        write(gguf, like, type, vocabulary)
        size = gguf.stat().st_size
        with (
            flm_server(
                str(gguf), threads=threads, lanes=1, flags=FORGETFUL, home=Path(folder)
            ) as ours,
            llama_cpp_server(
                gguf, threads=threads, slots=1, context=CONTEXT, cache_ram_mib=0
            ) as peer,
        ):
            timed = in_turns([Client(ours.url), Client(peer.url)], rounds)
    prefill = [statistics.median(PROMPT / once.first_s for once in side) for side in timed]
    decode = [statistics.median(once.tokens_per_s for once in side) for side in timed]
    keep(
        "families",
        f"{family} {type}",
        sizes=like.model,
        mib=size // 2**20,
        prefill_flm=prefill[0],
        prefill_llama_cpp=prefill[1],
        prefill_ratio=prefill[0] / prefill[1],
        prefill_least=PREFILL_LEAST,
        decode_flm=decode[0],
        decode_llama_cpp=decode[1],
        decode_ratio=decode[0] / decode[1],
        decode_least=DECODE_LEAST[type],
    )


def in_turns(clients: list[Client], rounds: int) -> list[list[Timed]]:
    """By client."""
    timed: list[list[Timed]] = [[] for _ in clients]
    for client in clients:
        client.complete(tokens_of(WARM_UP[0], next(_seeds)), WARM_UP[1], ignore_eos=True)
    for _ in range(rounds):
        prompt = tokens_of(PROMPT, next(_seeds))
        for client, of_this in zip(clients, timed, strict=True):
            of_this.append(client.complete(prompt, REPLY, ignore_eos=True))
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="families, with commas")
    parser.add_argument("--type", choices=("Q4_K_M", "Q4_0"), help="of families without experts")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    only = list(filter(None, given.only.split(",")))
    known = {**LIKES, **LARGE}
    if unknown := set(only) - known.keys():
        parser.error(f"no such family: {', '.join(unknown)}; there are {', '.join(known)}")
    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    vocabulary = GgufFile(pull("smollm2:135m", settings, progress=lambda *_: None))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for family in only or LIKES:
        like = known[family]
        type = given.type if given.type and not like.experts else like.type
        measure(family, like, type, given.rounds, vocabulary)


if __name__ == "__main__":
    main()
