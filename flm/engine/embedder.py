"""An encoder, loaded: texts in, a vector each out. It needs no engine, for it keeps nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from flm.devices.device import EMBEDDING, IDS, LENGTHS, Array
from flm.engine.plan import require_room_beside
from flm.errors import BadModelFile, PassCancelled
from flm.graph.bundle import ROW_DTYPES, WEIGHTS, Bundle
from flm.models.cards import Card
from flm.settings import Settings
from flm.text.encoder_tokenizer import EncoderTokenizer

if TYPE_CHECKING:
    import onnxruntime

PASS_TOKENS_MAX = 1024  # of a pass, with what pads its shorter texts; more are no faster


@dataclass(frozen=True, slots=True)
class Embedder:
    """Any thread may call it; passes take turns."""

    card: Card
    tokenizer: EncoderTokenizer
    context_length: int
    width: int
    bytes: int
    _session: "onnxruntime.InferenceSession"
    _turn: Lock = field(default_factory=Lock)

    def embed(
        self, texts: Sequence[Sequence[int]], *, wanted: Callable[[], bool] = lambda: True
    ) -> list[Array]:
        """[width] float32 of length 1 for each, of 1 to `context_length` ids. Raises PassCancelled
        once they are not `wanted` any more: asked before every pass.
        """
        vectors: dict[int, Array] = {}
        for group in _passes(texts):
            if not wanted():
                raise PassCancelled("nobody wants these embeddings any more", fix="none needed")
            lengths = np.array([len(texts[index]) for index in group], np.int32)
            ids = np.zeros((len(group), lengths.max()), np.int64)
            for row, index in zip(ids, group, strict=True):
                row[: len(texts[index])] = texts[index]
            with self._turn:
                (found,) = self._session.run([EMBEDDING], {IDS: ids, LENGTHS: lengths})
            vectors |= zip(group, found, strict=True)
        return [vectors[index] for index in range(len(texts))]


def load_embedder(
    bundle: Bundle,
    card: Card,
    settings: Settings,
    *,
    taken_bytes: int,
    say: Callable[[str], None] = lambda text: None,
) -> Embedder:
    """On the CPU, beside what has taken so much memory. Raises NoRoom, BadModelFile."""
    from flm.devices.cpu import open_session
    from flm.devices.machine import cores_physical, memory_bytes

    if not bundle.embeds:
        raise BadModelFile(f"{card.tag} is no encoder")
    file_bytes = (bundle.folder / WEIGHTS).stat().st_size
    needed = require_room_beside(card.tag, file_bytes, taken_bytes, memory_bytes(), say=say)
    threads = settings.threads or cores_physical()
    graph = bundle.graph(ROW_DTYPES[0])
    session = open_session(str(graph), bundle.folder, threads=threads)
    return Embedder(
        card,
        EncoderTokenizer.load(bundle.folder),
        bundle.context_length,
        session.get_outputs()[0].shape[-1],
        needed,
        session,
    )


def _passes(texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Which texts share one: those of like lengths, so that little is padding."""
    group: list[int] = []
    for index in sorted(range(len(texts)), key=lambda index: len(texts[index])):
        if group and (len(group) + 1) * len(texts[index]) > PASS_TOKENS_MAX:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
