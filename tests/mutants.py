"""Deliberate bugs in the prefix cache, each of which a test must catch.

    python -m tests.mutants

Each is a piece of text that stands once in its file, and what takes its place in a temporary copy
of the tree. The tests named with it then have to fail.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("flm", "models", "bench", "tests", "docs", "pyproject.toml")
PURE = "tests/pure"
TIMEOUT_S = 180  # what is merely slow catches nothing


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]


DISK = (f"{PURE}/test_prefix_disk.py", f"{PURE}/test_prefix_disk_spill.py")
MUTANTS = (
    Mutant(  # a hit that leaves nothing to compute, without logits
        "flm/prefix/cache.py",
        "furthest = max(0, length - self.read_min)",
        "furthest = length",
        (f"{PURE}/test_prefix_scenarios.py",),
    ),
    Mutant(  # what is on its way is not counted
        "flm/prefix/room.py",
        "needed = cache.bytes_kept + cache.bytes_coming + addition.bytes(match)",
        "needed = cache.bytes_kept + addition.bytes(match)",
        DISK,
    ),
    Mutant(  # the save rule forgets where the request began
        "flm/prefix/lease.py",
        "gain, gain_min = boundary.offset - self.offset, self._cache.gain_min",
        "gain, gain_min = boundary.offset, self._cache.gain_min",
        (f"{PURE}/test_prefix_scenarios.py", f"{PURE}/test_prefix_log.py"),
    ),
    Mutant(  # a lease rests on nothing
        "flm/prefix/lease.py",
        "before, self.node = self.node, match.node",
        "before = match.node",
        (f"{PURE}/test_prefix_budget.py",),
    ),
    Mutant(  # a split edge keeps one row too many above
        "flm/prefix/trie.py",
        "node.rows[name] = array[:, count:].copy()",
        "node.rows[name] = array[:, count - 1 : -1].copy()",
        DISK[1:],
    ),
    Mutant(  # domains share a root
        "flm/prefix/trie.py",
        "def root(self, domain: str) -> Node:",
        'def root(self, domain: str) -> Node:\n        domain = ""',
        DISK[:1],
    ),
    Mutant(  # memory is written again while somebody looks at it
        "flm/memory/arrays.py",
        "    finalize(block, _hand_over, memory).atexit = False\n",
        "    _hand_over(memory)\n",
        (f"{PURE}/test_memory_arrays.py",),
    ),
    Mutant(  # what is given up and not written again stays beside what is new
        "flm/memory/arrays.py",
        "spare.clear()",
        "pass",
        (f"{PURE}/test_memory_arrays.py",),
    ),
    Mutant(  # and beside the edge that is cut
        "flm/prefix/lease.py",
        "with nullcontext() if match.child else reuse():",
        "with reuse():",
        (f"{PURE}/test_prefix_budget.py",),
    ),
    Mutant(  # one future less than all agree on
        "flm/prefix/boundaries.py",
        "found.append((kind, min(",
        "found.append((kind, max(",
        (f"{PURE}/test_boundaries.py", f"{PURE}/test_boundaries_encoder.py"),
    ),
    Mutant(  # what an edge shares in part is relied on while it may go
        "flm/prefix/addition.py",
        "length = match.node.end if self.apart else match.length",
        "length = match.length",
        (f"{PURE}/test_prefix_disk_machine.py",),
    ),
    Mutant(  # rows kept meanwhile stay alive behind a view
        "flm/prefix/fetch.py",
        "array[:, skip:].copy()",
        "array[:, skip:]",
        DISK[:1],
    ),
    Mutant(  # what comes is one row off
        "flm/prefix/fetch.py",
        "skip = start - loaded.start",
        "skip = max(0, start - loaded.start - 1)",
        DISK[:1],
    ),
    Mutant(  # who cancels first takes it from the others
        "flm/prefix/fetch.py",
        "self.users -= 1",
        "self.users = 0",
        DISK[:1],
    ),
    Mutant(  # what waits for a tool is kept however late that is
        "flm/prefix/awaited.py",
        "for wait in self._waits.values() if wait.until_s > now for slot",
        "for wait in self._waits.values() for slot",
        (f"{PURE}/test_prefix_awaited.py",),
    ),
    Mutant(  # who calls a lot pushes out others' waits
        "flm/prefix/awaited.py",
        "del self._waits[_oldest_of_most(self._waits)]",
        "del self._waits[next(iter(self._waits))]",
        (f"{PURE}/test_prefix_awaited.py",),
    ),
    Mutant(  # who calls many tools pushes out what is known of others'
        "flm/prefix/awaited.py",
        "del self._took_s[_oldest_of_most(self._took_s)]",
        "del self._took_s[next(iter(self._took_s))]",
        (f"{PURE}/test_prefix_awaited.py",),
    ),
    Mutant(  # who has come and waits for a lane is awaited no more
        "flm/prefix/awaited.py",
        "wait.came, wait.until_s = True, now + AWAITED_S_MAX",
        "wait.came, wait.until_s = True, now",
        ("tests/engine/test_awaited.py",),
    ),
    Mutant(  # what was read ahead of a tool's result may go before it comes
        "flm/prefix/lease.py",
        "cache.awaited.grew(self.prompt, slot.number)",
        "pass",
        (f"{PURE}/test_prefix_awaited.py",),
    ),
    Mutant(  # what is being written is given up
        "flm/prefix/room.py",
        "writing = {node for node in slots if node.slot and node.slot.writing}",
        "writing: set[Node] = set()",
        DISK[1:],
    ),
    Mutant(  # eager, not lazy
        "flm/prefix/spill.py",
        "SPILL_FROM = 0.5",
        "SPILL_FROM = 0.0",
        DISK[1:],
    ),
    Mutant(  # what was outgrown is written all the same
        "flm/prefix/spill.py",
        "not (each.slot.writing or outgrown(each))]",
        "not each.slot.writing]",
        DISK[1:],
    ),
    Mutant(  # a torn frame is believed
        "flm/prefix/disk/frames.py",
        "if bytes(head) != self.head(arrays):",
        "if len(head) != len(self.head(arrays)):",
        (f"{PURE}/test_disk_damage.py",),
    ),
    Mutant(  # the index has it before its files lie there
        "flm/prefix/disk/draft.py",
        "self._new(name).rename(self.folder.path / name)",
        "pass",
        (f"{PURE}/test_disk_store.py",),
    ),
    Mutant(  # a read does not hold what it has chosen
        "flm/prefix/disk/tier.py",
        "pinned, size = self.store.pin(stored), stored.bytes(start)",
        "pinned, size = False, stored.bytes(start)",
        (f"{PURE}/test_disk_tier.py",),
    ),
    Mutant(  # all requests wait for the disk with one
        "flm/engine/waiting.py",
        "return fetch is None or fetch.done",
        "return not self._fetches or (fetch is not None and fetch.done)",
        ("tests/engine/test_disk.py",),
    ),
    Mutant(  # a cancelled request leaves its fetch
        "flm/engine/waiting.py",
        "                fetch.close()\n        return found",
        "                pass\n        return found",
        ("tests/engine/test_disk.py",),
    ),
    Mutant(  # all requests wait for the tower with one
        "flm/engine/waiting.py",
        "if (needed := self._pictures.get(request_id)) and not needed.done:",
        "if not all(needed.done for needed in self._pictures.values()):",
        ("tests/engine/test_encodings.py",),
    ),
    Mutant(  # a cancelled request leaves its pictures on their way
        "flm/engine/waiting.py",
        "                needed.close()\n            if fetch",
        "                pass\n            if fetch",
        ("tests/engine/test_encodings.py",),
    ),
    Mutant(  # a picture is encoded for each that waits for it
        "flm/runner/encodings.py",
        "encoding = self._wanted.get(picture.identity)",
        "encoding: Encoding | None = None",
        ("tests/engine/test_encodings.py",),
    ),
    Mutant(  # what is kept of a prompt has its pictures encoded all the same
        "flm/engine/waiting.py",
        "if each.end > start",
        "if each.end > 0",
        ("tests/engine/test_encodings.py",),
    ),
)


def failing(tests: tuple[str, ...], tree: Path) -> str | None:
    """The first of them that fails, None if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, f"--timeout={TIMEOUT_S}", *tests],
        cwd=tree, capture_output=True, text=True, check=False, env=_environment(tree),
    )  # fmt: skip
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return failed[1] if failed else run.stdout[-300:] + run.stderr[-300:]


def caught_by(mutant: Mutant, tree: Path) -> str | None:
    place = tree / mutant.file
    source = place.read_text()
    assert source.count(mutant.text) == 1, f"not once in {mutant.file}: {mutant.text}"
    place.write_text(source.replace(mutant.text, mutant.instead))
    try:
        return failing(mutant.tests, tree)
    finally:
        place.write_text(source)


def survivors() -> list[Mutant]:
    """Says of each what caught it."""
    found = []
    with tempfile.TemporaryDirectory() as home:
        tree = Path(home)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, symlinks=True)
            else:
                shutil.copy(ROOT / name, tree / name)
        tests = tuple(sorted({test for mutant in MUTANTS for test in mutant.tests}))
        assert failing(tests, tree) is None, "a test that fails anyway catches nothing"
        for mutant in MUTANTS:
            test = caught_by(mutant, tree)
            line = mutant.text.strip().splitlines()[0]
            print(f"{mutant.file}: {line[:70]}\n    {test or 'SURVIVES'}", flush=True)
            if test is None:
                found.append(mutant)
    return found


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(1 if survivors() else 0)
