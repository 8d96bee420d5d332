"""The disk under random traffic, beside a model of it: what is found is what was written."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flm.core.prompt import BoundaryKind
from flm.prefix.disk.stored import BrokenEntry, Stored
from tests.pure.disk import HYBRID, QUICK, STATELESS, Disk, packed

BYTES_MAX = 230_000
tokens_lists = st.lists(st.integers(0, 2), min_size=1, max_size=24)
domains = st.sampled_from(["", "b"])


class DiskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=QUICK))
        self.written: set[tuple[str, tuple[int, ...]]] = set()
        self.chosen: list[tuple[str, list[int], Stored]] = []
        self.peak = 0

    @initialize(hybrid=st.booleans())
    def start(self, hybrid: bool) -> None:
        self.disk = Disk(self.root / "root", HYBRID if hybrid else STATELESS, bytes_max=BYTES_MAX)

    @rule(
        tokens=tokens_lists, domain=domains, kind=st.sampled_from(BoundaryKind),
        logits=st.booleans(), cut=st.integers(1, 23), bulk=st.integers(0, 2),
    )  # fmt: skip
    def write(
        self, tokens: list[int], domain: str, kind: BoundaryKind, logits: bool, cut: int, bulk: int
    ) -> None:
        tokens = tokens + [5] * (bulk * 400)  # so that room lacks
        cuts = [cut] if cut < len(tokens) else []
        item = self.disk.item(tokens, kind, logits=logits, cuts=cuts, domain=domain)
        self.disk.store.write(item, lambda count: self.weigh())
        assert self.disk.holds(tokens, domain) or bulk
        if self.disk.holds(tokens, domain):
            self.written.add((domain, tuple(tokens)))

    @rule(tokens=tokens_lists, domain=domains, start=st.integers(0, 30))
    def find(self, tokens: list[int], domain: str, start: int) -> None:
        stored = self.disk.find(tokens, domain)
        mine = [kept for of, kept in self.written if of == domain]
        places = {len(kept) for kept in mine if kept == tuple(tokens[: len(kept)])}
        if not self.disk.layout.state:
            places = {
                n for n in range(len(tokens) + 1)
                if any(kept[:n] == tuple(tokens[:n]) for kept in mine)
            }  # fmt: skip
        if stored:
            assert stored.offset in places
            assert stored.offset < len(tokens) or stored.logits_bytes
            self.disk.compare(tokens, self.disk.store.read(stored, min(start, stored.offset)))

    @rule(tokens=tokens_lists, domain=domains)
    def choose(self, tokens: list[int], domain: str) -> None:
        stored = self.disk.find(tokens, domain)
        if stored and self.disk.store.pin(stored):
            self.chosen.append((domain, tokens, stored))

    @precondition(lambda self: self.chosen)
    @rule()
    def land(self) -> None:
        _, tokens, stored = self.chosen.pop()
        self.disk.compare(tokens, self.disk.store.read(stored, 0))
        self.disk.store.unpin(stored)

    @precondition(lambda self: not self.chosen)
    @rule()
    def reopen(self) -> None:
        before = self.disk.store.overview()
        self.disk.reopen()
        after = self.disk.store.overview()
        assert {each.number for each in before} == {each.number for each in after}

    @precondition(lambda self: not self.chosen)
    @rule(domain=domains)
    def clear(self, domain: str) -> None:
        self.disk.store.clear(domain)
        self.written = {each for each in self.written if each[0] != domain}

    @precondition(lambda self: not self.chosen)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        paths = sorted(p for p in self.disk.folder.iterdir() if p.suffix in (".rows", ".state"))
        if not paths:
            return
        path = data.draw(st.sampled_from(paths))
        torn = bytearray(path.read_bytes())
        torn[data.draw(st.integers(0, len(torn) - 1))] ^= 1
        path.write_bytes(torn)
        broken = []
        for domain, tokens in sorted(self.written):
            while stored := self.disk.store.find(domain, packed([*tokens, 9])):
                try:
                    self.disk.compare(tokens, self.disk.store.read(stored, 0))
                    break
                except BrokenEntry as error:
                    broken.append(error.name)
        assert broken in ([], [path.name])

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "disk"):
            self.disk.store.check()
            self.weigh()

    def weigh(self) -> None:
        sizes = [p.stat().st_size for p in self.root.rglob("*") if p.is_file()]
        assert sum(sizes) <= BYTES_MAX

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.store.close()
        shutil.rmtree(self.root)


TestDisk = DiskMachine.TestCase
TestDisk.settings = settings(
    max_examples=12,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
