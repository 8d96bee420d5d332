"""Which encoders make embeddings: on the shelf, and loaded beside what chats when first asked.

Invariants:
  * One stays while a guest uses it, and as long after that as `--keep-alive` or the last who asked
    it says.
  * What it takes is promised to it as long as it is loaded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from flm import console
from flm.engine.embedder import Embedder, load_embedder
from flm.errors import BadRequest
from flm.graph.bundle import Bundle
from flm.models.cards import Card, encoders
from flm.server.residence.expiry import Expiry
from flm.server.residence.names import CLASSES, is_of, split_class
from flm.server.residence.residence import MustWait, Residence
from flm.server.residence.turns import Guest
from flm.settings import Settings


@dataclass(eq=False, slots=True)
class Lodger:
    """An encoder that is loaded, and who uses it."""

    embedder: Embedder
    expiry: Expiry
    guests: set[Guest] = field(default_factory=set)


class Embedders:
    """Nothing is fetched here: that is for `flm pull`, or --embed 1."""

    def __init__(self, settings: Settings, residence: Residence) -> None:
        self._settings = settings
        self._residence = residence
        self._promised = residence.promised
        self._promised.let_go = self._let_go
        self._lodgers: dict[str, Lodger] = {}  # by tag
        self._door = Lock()  # held for moments, never while one is loaded

    @property
    def loaded(self) -> list[tuple[Embedder, float | None]]:
        """And when each goes if nobody asks it, in seconds since 1970. On any thread."""
        with self._door:
            return [(each.embedder, each.expiry.at) for each in self._lodgers.values()]

    @contextmanager
    def asked(self, guest: Guest) -> Iterator[None]:
        """Whichever `find` gives the guest meanwhile stays loaded. On the event loop."""
        try:
            yield
        finally:
            with self._door:
                used = [each for each in self._lodgers.values() if guest in each.guests]
                for each in used:
                    each.guests.remove(guest)
            for each in used:
                if not each.guests:
                    each.expiry.unused()

    def keep_alive(self, guest: Guest, seconds: float | None) -> None:
        """From now on, for what the guest uses. None: for ever."""
        with self._door:
            for each in self._lodgers.values():
                if guest in each.guests:
                    each.expiry.seconds = seconds

    def find(self, model: str, guest: Guest) -> Embedder:
        """Whatever class it asks for. On any thread; takes a while if it has to be loaded. Raises
        ModelNotFound, BadRequest for a model that writes, ModelLoading, NoRoom.
        """
        name, word = split_class(model)
        card = _named(name if word in CLASSES else model)
        if card is None:
            raise BadRequest(
                f"{self._writer(model)} writes replies and makes no embeddings",
                fix=f"ask {encoders()[0].tag} for them (flm pull {encoders()[0].tag})",
                param="model",
            )
        if here := self._enter(card.tag, guest):
            return here
        from flm.hub.prepare import prepare_installed

        bundle, _ = prepare_installed(card.tag, self._settings)
        with self._promised.turn:
            return self._enter(card.tag, guest) or self._load(bundle, card, guest)

    def _enter(self, tag: str, guest: Guest) -> Embedder | None:
        with self._door:
            lodger = self._lodgers.get(tag)
            if lodger is None:
                return None
            lodger.guests.add(guest)
            return lodger.embedder

    def _writer(self, model: str) -> str:
        """What a name means that is no encoder's. Raises ModelNotFound."""
        try:
            return self._residence.find(model).card.tag
        except MustWait as must:
            return must.text

    def _load(self, bundle: Bundle, card: Card, guest: Guest) -> Embedder:
        taken = self._promised.chats + sum(self._promised.encoders.values())
        embedder = load_embedder(bundle, card, self._settings, taken_bytes=taken, say=console.say)
        expiry = Expiry(self._settings.keep_alive, partial(self._expire, card.tag))
        with self._door:
            self._lodgers[card.tag] = Lodger(embedder, expiry, {guest})
            self._promised.encoders[card.tag] = embedder.bytes
        return embedder

    def _expire(self, tag: str) -> None:
        with self._door:
            lodger = self._lodgers.get(tag)
            if lodger and not lodger.guests:
                self._drop(tag)

    def _let_go(self) -> bool:
        """Of those that nobody uses; whether there were any."""
        with self._door:
            idle = [tag for tag, each in self._lodgers.items() if not each.guests]
            for tag in idle:
                self._drop(tag)
        return bool(idle)

    def _drop(self, tag: str) -> None:
        """Its memory goes with it: nothing else knows of it."""
        console.say(f"Unloading model: {tag}")
        del self._lodgers[tag], self._promised.encoders[tag]


def _named(model: str) -> Card | None:
    return next((card for card in encoders() if is_of(model, card)), None)
