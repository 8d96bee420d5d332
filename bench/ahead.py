"""What reading ahead saves: time to the first token of the turn after a long reply.

    python -m bench.ahead [--model smollm2:135m] [--rounds 5] [--pause 1.0]

Two servers, with and without it, take turns. After a reply of 200 tokens the client pauses, or
does not: an agent comes back at once, and must not be slower for it.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import count

from bench.chat import words_of
from bench.client import Client
from bench.rows import keep
from bench.servers import flm_server
from flm.devices.machine import cores_physical

PROMPT, REPLY, NEW = 500, 200, 30  # tokens
_seeds = count(1)


def next_turn(client: Client, seed: int, pause_s: float) -> tuple[float, int]:
    """Seconds to the first token of turn two, and how many of its tokens were read."""
    messages = [{"role": "user", "content": words_of(PROMPT, seed)}]
    reply = client.chat(messages, REPLY, ignore_eos=True)
    messages += [
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": words_of(NEW, seed + 10_000)},
    ]
    time.sleep(pause_s)
    turn = client.chat(messages, 1)
    cached = turn.usage["prompt_tokens_details"]["cached_tokens"]
    return turn.first_s, turn.usage["prompt_tokens"] - cached


def compare(sides: dict[str, Client], rounds: int, pause_s: float) -> None:
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in sides}
    for seed in (next(_seeds) for _ in range(rounds)):
        for name, client in sides.items():
            taken[name].append(next_turn(client, seed, pause_s))
    middle: Callable[[str, int], float] = lambda name, at: statistics.median(  # noqa: E731
        each[at] for each in taken[name]
    )
    on, off = middle("on", 0), middle("off", 0)
    keep(
        "ahead",
        f"turn two TTFT after a {REPLY}-token reply, {pause_s:g} s later",
        on=on,
        off=off,
        ratio=on / off,
        read_on=middle("on", 1),
        read_off=middle("off", 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0)
    asked = parser.parse_args()
    common = ("--prefix-disk-mb", "0", "--read-ahead")
    threads = cores_physical()
    with (
        flm_server(asked.model, threads=threads, lanes=2, flags=(*common, "on")) as on,
        flm_server(asked.model, threads=threads, lanes=2, flags=(*common, "off")) as off,
    ):
        sides = {"on": Client(on.url), "off": Client(off.url)}
        for pause_s in (asked.pause, 0.0):
            compare(sides, asked.rounds, pause_s)


if __name__ == "__main__":
    main()
