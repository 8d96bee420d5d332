"""A model in miniature whose rows and state are functions of its tokens, and a disk for them."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from struct import pack

import numpy as np
import pytest

from flm.core.prompt import BoundaryKind
from flm.core.tensor import MemoryKind
from flm.devices.device import Array
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.prefix.disk.identity import Identity, layout_hash
from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.stored import Loaded, Piece, Stored, Unwritten

WINDOW = 4  # tokens, so that little data has many windows
MIB = 2**20
ROWS = (
    MemoryTensor("key", MemoryKind.ROWS, (2, 3), "float32"),
    MemoryTensor("value", MemoryKind.ROWS, (1, 5), "float16"),
    MemoryTensor("index", MemoryKind.ROWS, (1, 3), "int8"),
)
STATE = (
    MemoryTensor("chain", MemoryKind.STATE, (3, 7), "float32"),
    MemoryTensor("tail", MemoryKind.STATE, (5,), "uint8"),
)


class ToyLayout(MemoryLayout):
    """Of a model that reads a lone token like any other, whatever it carries."""

    read_min = first_min = 1


STATELESS, HYBRID = ToyLayout(ROWS), ToyLayout((*STATE, *ROWS))
RECURRENT = ToyLayout(STATE)
VOCABULARY = 11
# A file system in memory, if there is one: to sync there costs nothing.
QUICK = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
every = pytest.mark.parametrize(
    "layout", [STATELESS, HYBRID, RECURRENT], ids=["stateless", "hybrid", "recurrent"]
)
both = pytest.mark.parametrize("layout", [STATELESS, HYBRID], ids=["stateless", "hybrid"])
LONG = list(range(100, 123))


def packed(tokens: Sequence[int]) -> bytes:
    return pack(f"{len(tokens)}i", *tokens)


def noise(seed: bytes, count: int) -> Array:
    return np.frombuffer(hashlib.shake_128(seed).digest(count), np.uint8)


def rows_of(layout: MemoryLayout, tokens: Sequence[int], start: int, end: int) -> dict[str, Array]:
    """Row i is a function of all tokens up to i."""
    rows: dict[str, Array] = {}
    for tensor in layout.rows:
        each = [
            noise(tensor.name.encode() + packed(tokens[: i + 1]), tensor.bytes)
            for i in range(start, end)
        ]
        heads, width = tensor.shape
        table = np.array(each, np.uint8).reshape(end - start, tensor.bytes)
        whole = table.view(tensor.dtype).reshape(end - start, heads, width)
        rows[tensor.name] = np.ascontiguousarray(whole.transpose(1, 0, 2))
    return rows


def state_of(layout: MemoryLayout, tokens: Sequence[int]) -> dict[str, Array]:
    return {
        t.name: noise(t.name.encode() + packed(tokens), t.bytes).view(t.dtype).reshape(t.shape)
        for t in layout.state
    }


def logits_of(tokens: Sequence[int]) -> Array:
    return noise(b"logits" + packed(tokens), 4 * VOCABULARY).view(np.float32)


def identity(layout: MemoryLayout, source: str = "weights") -> Identity:
    return Identity(
        source=source, graph=1, tokenizer="t", template="c", row_dtype="float32",
        layout=layout_hash(layout), device="cpu", runtime="r 1", instructions=("x86_64", "avx2"),
    )  # fmt: skip


class Disk:
    """A store, and the model that fills it. What it reads back is compared, bit for bit."""

    def __init__(
        self, root: Path, layout: MemoryLayout, *, bytes_max: int = 4 * MIB, source: str = "weights"
    ) -> None:
        self.root, self.layout, self.bytes_max = root, layout, bytes_max
        self.identity = identity(layout, source)
        self.now = 1_000_000.0
        self.warnings: list[str] = []
        self.store = self.open()

    @property
    def folder(self) -> Path:
        return self.root / self.identity.digest

    def open(self) -> DiskStore:
        return DiskStore(
            self.root, self.identity, self.layout, bytes_max=self.bytes_max, free_min_bytes=0,
            warn=self.warnings.append, clock=lambda: self.now, window=WINDOW,
        )  # fmt: skip

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()
        self.store.check()

    def item(
        self, tokens: Sequence[int], kind: BoundaryKind = BoundaryKind.TURN, *,
        logits: bool = False, cuts: Iterable[int] = (), domain: str = "", start: int = 0,
    ) -> Unwritten:  # fmt: skip
        edges = [start, *cuts, len(tokens)]
        pieces = [Piece(a, b, rows_of(self.layout, tokens, a, b)) for a, b in pairwise(edges)]
        state = state_of(self.layout, tokens)
        given = logits_of(tokens) if logits else None
        return Unwritten(domain, packed(tokens), kind, pieces, state, given)

    def write(
        self, tokens: Sequence[int], kind: BoundaryKind = BoundaryKind.TURN, *,
        logits: bool = False, cuts: Iterable[int] = (), domain: str = "",
    ) -> int:  # fmt: skip
        item = self.item(tokens, kind, logits=logits, cuts=cuts, domain=domain)
        return self.store.write(item)

    def find(self, tokens: Sequence[int], domain: str = "") -> Stored | None:
        return self.store.find(domain, packed(tokens))

    def offset(self, tokens: Sequence[int], domain: str = "") -> int:
        stored = self.find(tokens, domain)
        return stored.offset if stored else 0

    def holds(self, tokens: Sequence[int], domain: str = "") -> bool:
        return self.store.holds(domain, packed(tokens))

    def read(self, tokens: Sequence[int], start: int = 0, domain: str = "") -> Loaded:
        """What is found for `tokens`, which must be what was written."""
        stored = self.find(tokens, domain)
        assert stored
        loaded = self.store.read(stored, min(start, stored.offset))
        self.compare(tokens, loaded)
        return loaded

    def compare(self, tokens: Sequence[int], loaded: Loaded) -> None:
        way = tokens[: loaded.end]
        if loaded.start < loaded.end:
            same(loaded.rows, rows_of(self.layout, way, loaded.start, loaded.end))
        same(loaded.state, state_of(self.layout, way))
        if loaded.logits is not None:
            assert loaded.logits.tobytes() == logits_of(way).tobytes()


def same(got: object, expected: dict[str, Array]) -> None:
    assert isinstance(got, dict)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes(), name


def files(disk: Disk) -> dict[str, int]:
    names = (".rows", ".state", ".logits", ".new")
    return {p.name: p.stat().st_size for p in disk.folder.iterdir() if p.name.endswith(names)}
