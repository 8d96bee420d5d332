"""Which encoder makes embeddings: one on the shelf, loaded beside what chats when first asked."""

from threading import Lock

from flm import console
from flm.engine.embedder import Embedder, load_embedder
from flm.errors import BadRequest
from flm.models.cards import Card, encoders
from flm.server.residence.names import CLASSES, is_of, split_class
from flm.server.residence.residence import MustWait, Residence
from flm.settings import Settings


class Embedders:
    """Any thread may ask. Nothing is fetched here: that is for `flm pull`, or --embed 1."""

    def __init__(self, settings: Settings, residence: Residence) -> None:
        self._settings = settings
        self._residence = residence
        self._loaded: dict[str, Embedder] = {}
        self._loading = Lock()

    def find(self, model: str) -> Embedder:
        """Whatever class it asks for. Raises ModelNotFound, BadRequest for a model that writes,
        ModelLoading, NoRoom.
        """
        name, word = split_class(model)
        card = _named(name if word in CLASSES else model)
        if card is None:
            raise BadRequest(
                f"{self._writer(model)} writes replies and makes no embeddings",
                fix=f"ask {encoders()[0].tag} for them (flm pull {encoders()[0].tag})",
                param="model",
            )
        with self._loading:
            if card.tag not in self._loaded:
                self._loaded[card.tag] = self._load(card)
            return self._loaded[card.tag]

    def _writer(self, model: str) -> str:
        """What a name means that is no encoder's. Raises ModelNotFound."""
        try:
            return self._residence.find(model).card.tag
        except MustWait as must:
            return must.text

    def _load(self, card: Card) -> Embedder:
        from flm.hub.prepare import prepare_installed

        resident = self._residence.here
        taken = resident.plan.total if resident else 0
        taken += sum(embedder.bytes for embedder in self._loaded.values())
        bundle, _ = prepare_installed(card.tag, self._settings)
        return load_embedder(bundle, card, self._settings, taken_bytes=taken, say=console.say)


def _named(model: str) -> Card | None:
    return next((card for card in encoders() if is_of(model, card)), None)
