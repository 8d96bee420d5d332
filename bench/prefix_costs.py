"""What the prefix cache itself costs: `python -m bench.prefix_costs [--only leases,memory]`.

Medians. Leases and making room beside a thousand snapshots of 16K tokens; explaining a recorded
prompt of an agent; saving and restoring through the runner on the CPU device, beside a memcpy of as
many bytes in one piece to memory that was written before, and to new memory. A save is to what a
full cache gives up for it, or to new memory while the cache fills up.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

import numpy as np

from bench.prefix import quiet
from bench.rows import ROOT, keep
from bench.shapes import qwen35
from bench.traffic import conversation, recorded, small_vocabulary
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.sizes import MIB
from flm.core.tensor import MemoryKind
from flm.devices.cpu import CpuDevice
from flm.devices.machine import cores_physical
from flm.engine.residency import load
from flm.hub.prepare import prepare_model
from flm.hub.pull import pull
from flm.llm import LLM
from flm.memory.arrays import reuse
from flm.memory.lanes import Lanes
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.memory.snapshot import Snapshot
from flm.prefix.awaited import WAITS_MAX
from flm.prefix.boundaries import BoundaryFinder
from flm.prefix.cache import PrefixCache
from flm.prefix.eviction import POLICIES, Policy, flm
from flm.prefix.explain import explain
from flm.prefix.ghosts import Ghosts, found
from flm.runner.runner import Runner
from flm.settings import Settings

KEPT, LENGTH, SHARED, MORE = 1000, 16_384, 8_192, 200
ROUNDS = 15
NOW = datetime(2026, 1, 1)


def median_s(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(rounds))


class Crowd:
    """A full cache: a thousand conversations, fifty to a head."""

    def __init__(self, policy: Policy, *, state_bytes: int) -> None:
        self._random = np.random.default_rng(5)
        self._heads = [self._words(SHARED) for _ in range(KEPT // 50)]
        self.state_bytes = state_bytes
        self.cache = PrefixCache(
            bytes_max=2**40,
            slots_max=KEPT,
            gain_min=64,
            row_bytes=1,
            state_bytes=state_bytes,
            log=quiet,
            warn=quiet,
            policy=policy,
        )
        self.kept = [self.add(index) for index in range(KEPT)]

    def add(self, index: int) -> Prompt:
        prompt = self.prompt(self._heads[index % len(self._heads)] + self._words(LENGTH - SHARED))
        self.keep(prompt)
        return prompt

    def keep(self, prompt: Prompt) -> None:
        lease = self.cache.lease(prompt)
        for boundary in prompt.boundaries:
            lease.keep(boundary, self._save)
        lease.close()

    def call(self) -> None:
        """The oldest wait for tools, and parted at as many places."""
        for parted, prompt in enumerate(self.kept[:WAITS_MAX]):
            self.cache.called(self.prompt(list(prompt.tokens[: LENGTH - parted])), ["look"])

    def prompt(self, tokens: list[int]) -> Prompt:
        return Prompt(tuple(tokens), (Boundary(len(tokens), BoundaryKind.TURN),))

    def newcomer(self) -> Prompt:
        return self.prompt(self._words(LENGTH))

    def next_turn(self) -> Prompt:
        known = self.kept[int(self._random.integers(KEPT))]
        return self.prompt([*known.tokens, *self._words(MORE)])

    def _words(self, count: int) -> list[int]:
        words: list[int] = self._random.integers(0, 50_000, count).tolist()
        return words

    def _save(self, start: int, end: int) -> Snapshot:
        state = {"state": np.zeros(self.state_bytes, np.uint8)} if self.state_bytes else {}
        return Snapshot(start, end, {"rows": np.zeros((1, end - start, 1), np.uint8)}, state)


def leases() -> None:
    """Finding the longest kept prefix, and the time for each victim when room is made."""
    for name, state_bytes in (("rows only", 0), ("with state", 64)):
        crowd = Crowd(flm, state_bytes=state_bytes)
        for beside in ("", f", beside {WAITS_MAX} that wait for tools"):
            if beside:
                crowd.call()
            prompts = iter([crowd.next_turn() for _ in range(10 * ROUNDS)])

            def lease(crowd: Crowd = crowd, prompts: Iterator[Prompt] = prompts) -> None:
                crowd.cache.lease(next(prompts)).close()

            took_ms = 1000 * median_s(lease, 10 * ROUNDS)
            keep("prefix_costs", f"lease and match, {name}{beside}, ms", took=took_ms, most=0.2)
    for name, policy in POLICIES.items():
        crowd = Crowd(policy, state_bytes=64)
        newcomers = iter([crowd.newcomer() for _ in range(ROUNDS)])

        def give_up(crowd: Crowd = crowd, newcomers: Iterator[Prompt] = newcomers) -> None:
            crowd.keep(next(newcomers))

        keep("prefix_costs", f"a victim of {KEPT}, {name}, ms", took=1000 * median_s(give_up))


def explains() -> None:
    """A recorded prompt whose system message changed in the middle, with 64 others remembered."""
    template, tokenizer = small_vocabulary()
    finder, body = BoundaryFinder(template, tokenizer), recorded()[-1]["body"]
    talk = conversation(body, 0)
    ghosts = Ghosts(64 * MIB)
    for again in range(64):
        ghosts.see(finder.find(conversation(body, again), now=NOW))
    system = talk.messages[0]
    half = len(system.content or "") // 2
    changed = f"{(system.content or '')[:half]} 12:07:31 {(system.content or '')[half:]}"
    other = replace(talk, messages=(replace(system, content=changed), *talk.messages[1:]))
    prompt, text = finder.find(other, now=NOW), template.render(other, now=NOW)

    def work() -> None:
        finding = found(prompt, offset=0, tier=None, gain_min=64, sightings=[ghosts.find(prompt)])
        assert explain(other, text, finding, tokenizer)

    keep("prefix_costs", "explain, ms", took=1000 * median_s(work), most=5)


def qwen35_4b() -> MemoryLayout:
    """Qwen3.5 4B's memory at float16: 32 KiB a row, 49 MiB of state."""
    tensors = []
    for layer in range(32):
        if layer % 4 == 3:
            tensors += [
                MemoryTensor(f"{layer}.{name}", MemoryKind.ROWS, (4, 256), "float16")
                for name in ("key", "value")
            ]
        else:
            tensors += [
                MemoryTensor(f"{layer}.state", MemoryKind.STATE, (32, 128, 128), "float32"),
                MemoryTensor(f"{layer}.conv", MemoryKind.STATE, (8192, 3), "float16"),
            ]
    return MemoryLayout(tuple(tensors))


def memory() -> None:
    """GB/s of saves and restores."""
    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    gguf = pull("smollm2:135m", settings, progress=lambda *_: None)
    bundle, _ = prepare_model(str(gguf), settings)
    device = CpuDevice(threads=cores_physical())
    program = device.load(bundle.graph("float16"))
    layouts = {"SmolLM2": bundle.layouts["float16"], "Qwen3.5 4B": qwen35_4b()}
    for model, layout in layouts.items():
        for rows in (2048, 8192):
            lanes = Lanes(device, layout, count=1, capacity_max=rows, capacity_start=rows)
            runner = Runner(program, device, layout, lanes, vocabulary=bundle.vocabulary)
            for name, buffer in lanes.buffers(0, 1).items():
                buffer.array()[...] = len(name)  # else its pages are not there yet
            tokens = tuple(range(rows))
            lanes.acquire(tokens)
            lanes.advance(0, tokens, read=True)
            size = rows * layout.row_bytes + layout.state_bytes
            carry(f"{model}, {rows} rows", runner, lanes, tokens, size)


def carry(name: str, runner: Runner, lanes: Lanes, tokens: tuple[int, ...], size: int) -> None:
    kept = [runner.save(0, 0, len(tokens))]
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)

    def save() -> None:
        with reuse():
            kept.clear()
            kept.append(runner.save(0, 0, len(tokens)))

    def restore() -> None:
        lanes.rewind(0, 0)
        runner.restore(0, tokens, kept)

    speeds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):  # in turns, so that what else the machine does falls on all
        for what, work in (
            ("save", save),
            ("save_new", lambda: runner.save(0, 0, len(tokens))),
            ("memcpy_new", source.copy),
            ("restore", restore),
            ("memcpy", lambda: np.copyto(target, source)),
        ):
            speeds.setdefault(what, []).append(size / median_s(work, 1) / 1e9)
    found_gb_s = {what: statistics.median(each) for what, each in speeds.items()}
    keep(
        "prefix_costs",
        f"{name}, GB/s",
        mib=size // MIB,
        **found_gb_s,
        save_ratio=found_gb_s["save"] / found_gb_s["memcpy"],
        save_new_ratio=found_gb_s["save_new"] / found_gb_s["memcpy"],
        restore_ratio=found_gb_s["restore"] / found_gb_s["memcpy"],
        least=0.6,
    )


def keeping() -> None:
    """To the first token of a cold chat, with all its places kept and with none."""
    settings = replace(
        Settings(), model_path=ROOT / ".cache" / "flm", prefix_disk_mb=0, read_ahead=False, lanes=1
    )
    gguf = pull("smollm2:135m", settings, progress=lambda *_: None)
    for model, path in (("SmolLM2", gguf), ("Qwen3.5 0.3B", qwen35(gguf))):
        prepared = prepare_model(str(path), settings)
        sides = {
            "kept": LLM(load(*prepared, settings)),
            "not_kept": LLM(load(*prepared, replace(settings, reuse_prompt=False))),
        }
        for numbers, rounds in ((680, 5), (2600, 3)):
            took: dict[str, list[float]] = {name: [] for name in sides}
            for seed in range(rounds):
                told = np.random.default_rng((seed, numbers)).integers(10, 99, numbers)
                system = " ".join(map(str, told))
                chat = [{"role": "system", "content": system}, {"role": "user", "content": "Sum?"}]
                for name, llm in sides.items():
                    usage = llm.chat(chat, max_tokens=1, temperature=0).usage
                    assert usage.cached_tokens < 64, "not cold"
                    took[name].append(usage.prefill_s)
            ratios = [a / b for a, b in zip(took["kept"], took["not_kept"], strict=True)]
            keep(
                "prefix_costs",
                f"{model}, keeping a cold prompt, TTFT",
                prompt_tokens=usage.prompt_tokens,
                **{name: statistics.median(each) for name, each in took.items()},
                ratio=statistics.median(ratios),
                most=1.05 if numbers < 1000 else 1.02,
            )
        for llm in sides.values():
            llm.close()


FIGURES = (leases, explains, memory, keeping)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="figures, by function name, with commas")
    only = set(filter(None, parser.parse_args().only.split(",")))
    for figure in FIGURES:
        if not only or figure.__name__ in only:
            figure()


if __name__ == "__main__":
    main()
