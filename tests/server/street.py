"""A server with several models: the real residence, engines and shelf over null devices, where what
is on the shelf are names of files.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from flm.engine.residency import Resident
from flm.hub.reference import resolve
from flm.hub.shelf import Shelf
from flm.server.residence.residence import Residence
from flm.settings import Settings
from tests.server.house import SETTINGS, House, open_house, serving
from tests.server.test_leaving import HELLO

NAMES = ("ant", "bee", "cow")
CHAT = "/v1/chat/completions"


@dataclass
class Street:
    """A server whose models live in houses; `loads` and `closed` are the names, in order."""

    settings: Settings
    folder: Path
    url: str = ""
    loads: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    houses: dict[str, House] = field(default_factory=dict)
    faults: dict[str, Exception] = field(default_factory=dict)  # of getting ready
    late_faults: dict[str, Exception] = field(default_factory=dict)  # of loading
    before_prepare: Callable[[str], None] = lambda name: None
    before_load: Callable[[str], None] = lambda name: None
    on_open: Callable[[House], None] = lambda house: None
    residence: Residence = field(init=False)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.residence = Residence(self.settings, self.prepare)
        shelf = Shelf(self.settings.model_path)
        for name in NAMES:
            file = self.folder / f"{name}.gguf"
            file.write_bytes(b"GGUF")
            wanted = resolve(str(file))
            shelf.make_folder(wanted)
            shelf.record(wanted, [])

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.gguf")

    def prepare(self, text: str) -> Callable[[], Resident]:
        name = Path(text).stem
        self.before_prepare(name)
        if name in self.faults:
            raise self.faults[name]
        return lambda: self.load(name)

    def load(self, name: str) -> Resident:
        self.before_load(name)
        if name in self.late_faults:
            raise self.late_faults[name]
        self.loads.append(name)
        folder = self.folder / f"{name}{len(self.loads)}"
        folder.mkdir()
        house = self._stack.enter_context(open_house(folder, self.settings))
        self.houses[name] = house
        self.on_open(house)
        card = replace(house.resident.card, tag=name, aliases=())
        closed = self.closed

        class Leaving(Resident):
            def close(self, flush_s: float = 0) -> None:
                closed.append(name)
                super().close(flush_s)

        fields = {each: getattr(house.resident, each) for each in Resident.__slots__}
        return Leaving(**{**fields, "card": card})

    def close(self) -> None:
        self._stack.close()

    def ask(self, name: str, **fields: Any) -> httpx.Response:
        body = {"model": name, "messages": HELLO, "max_tokens": 2, **fields}
        return httpx.post(self.url + CHAT, json=body, timeout=20)


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Street]:
    chosen = replace(SETTINGS, model_path=folder / "flm", **settings)
    street = Street(chosen, folder)
    street.residence.open_empty()
    try:
        with serving(street.residence, chosen) as street.url:
            yield street
    finally:
        street.close()
