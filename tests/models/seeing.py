"""Models that see, driven by hand: their tower's rows, and what the runner reads with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.picture import Picture, Placed, Sight, placed
from flm.core.step import Span, Step
from flm.devices.cpu import CpuDevice, open_session
from flm.graph.emit import Emitter, WeightStore
from flm.graph.layers import Numerics
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.memory.lanes import Lanes
from flm.models.family import Source, family_of, towers_of
from flm.prefix.shown import with_pictures
from flm.runner.eyes import Eyes
from flm.runner.runner import Runner
from flm.text.sight import fitted, views
from tests.models.drive import Graph
from tests.models.seen import PROMPT, pictures


def eyes_of(
    source: Source,
    folder: Path,
    *,
    family: str | None = None,
    bytes_max: int = 2**20,
    served: bool = False,
) -> Eyes:
    """Of a model's folder; or of an mmproj file, of `family`. `served`: in int8, not as proven."""
    emitter = Emitter(WeightStore(folder / "tower.bin"))
    kinds = towers_of(family or family_of(source)[0])
    towers = next(kind for kind in kinds if kind.has(source))
    shape = towers.shape(source)
    towers.emit(source, emitter, Numerics(int8_activations=served))
    emitter.save(folder / "tower.onnx", "tower")
    session = open_session(str(folder / "tower.onnx"), folder, threads=2)
    return Eyes(session, shape.sight, width=shape.out_width, bytes_max=bytes_max)


def runner_of(source: Source, scratch: Path, numerics: Numerics, eyes: Eyes) -> Runner:
    """With two lanes."""
    emitter = Emitter(WeightStore(scratch / "weights.bin"))
    _, family = family_of(source)
    emitted = family.emit(source, emitter, numerics)
    emitter.save(scratch / "graph.onnx", "seeing")
    device = CpuDevice(threads=2)
    lanes = Lanes(device, emitted.layout, count=2, capacity_max=256)
    program = device.load(scratch / "graph.onnx")
    return Runner(program, device, emitted.layout, lanes, vocabulary=emitted.vocabulary, eyes=eyes)


def shown_at(start: int, picture: Picture, sight: Sight, *, tokens_max: int = 48) -> Placed:
    fit = fitted(picture, sight, tokens_max=tokens_max, place="it")
    (view,) = views(fit, sight, 0)
    return placed(view, start)


class Seeing:
    """A model that sees, and lanes to read in."""

    def __init__(self, source: Source | Path, scratch: Path, mmproj: Source | None = None) -> None:
        """A folder; or a GGUF file and its `mmproj`."""
        if isinstance(source, Path):
            source = SafetensorsFolder(source, quantized=False)
        self.eyes = eyes_of(mmproj or source, scratch, family=family_of(source)[0])
        numerics = Numerics(False, sees=True, spread=self.eyes.sight.spread)
        self.runner = runner_of(source, scratch, numerics, self.eyes)

    def read(
        self, tokens: tuple[int, ...], shown: tuple[Placed, ...], chunks: list[int], lane: int = 0
    ) -> npt.NDArray[Any]:
        self.runner.restore(lane, [], [])
        start = 0
        for length in chunks:
            span = Span(lane, start, tokens[start : start + length], shown)
            logits = self.runner.run(Step((span,), prefill=True))[lane].copy()
            start += length
        return logits


def prompt_of(eyes: Eyes) -> tuple[tuple[int, ...], tuple[Placed, ...]]:
    made = pictures()
    shown: list[Placed] = []
    further = 0
    for at, each in enumerate(PROMPT):
        if each < 0:
            picture = made[-each - 1]
            shown.append(shown_at(at + further, picture, eyes.sight, tokens_max=1024))
            further += shown[-1].end - shown[-1].start - 1
    return with_pictures(PROMPT, shown), tuple(shown)


def blindfolded(width: int) -> Eyes:
    """For who is shown no pictures."""
    sight = Sight("cells", 4, 2, 4, 64, 64, placeholder="", mark="", spread=True)
    return Eyes(None, sight, width=width, bytes_max=0)  # type: ignore[arg-type]


def assert_logits_are(expected: Mapping[str, npt.NDArray[Any]], seeing: Seeing) -> None:
    """Those of transformers, read and decoded; and what is decoded is what would be read."""
    tokens, shown = prompt_of(seeing.eyes)
    for end, wanted in zip(expected["ends"], expected["logits"], strict=True):
        got = seeing.read(tokens[: end + 1], shown, [end + 1])
        np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=0)
    logits, length = seeing.read(tokens, shown, [len(tokens)]), len(tokens)
    for wanted in expected["greedy"]:
        assert logits.argmax() == wanted
        span = Span(0, length, (int(wanted),), shown)
        logits = seeing.runner.run(Step((span,), prefill=False))[0].copy()
        length += 1
    whole = (*tokens, *expected["greedy"].tolist())
    np.testing.assert_allclose(logits, seeing.read(whole, shown, [length]), atol=1e-4, rtol=0)


def assert_any_chunks_give_the_same_bits(seeing: Seeing) -> None:
    """Even within pictures."""
    tokens, shown = prompt_of(seeing.eyes)
    wanted = seeing.read(tokens, shown, [len(tokens)])
    for chunks in ([2, 2, 5, len(tokens) - 9], [20, len(tokens) - 22, 2]):
        assert np.array_equal(seeing.read(tokens, shown, chunks), wanted)


def assert_a_snapshot_goes_on(seeing: Seeing, cut: int) -> None:
    """Bit for bit, in another lane, from before or within pictures."""
    tokens, shown = prompt_of(seeing.eyes)
    wanted = seeing.read(tokens, shown, [len(tokens)])
    seeing.read(tokens[:cut], shown, [cut])
    kept = seeing.runner.save(0, 0, cut)
    seeing.runner.restore(1, tokens[:cut], [kept])
    rest = Span(1, cut, tokens[cut:], shown)
    assert np.array_equal(seeing.runner.run(Step((rest,), prefill=True))[1], wanted)


def assert_text_keeps_its_bits(
    source: Source, row_dtype: str, ids: tuple[int, ...], scratch: Path
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A graph that sees reads text without pictures, and decodes, as one that sees nothing; gives
    the logits of both.
    """
    (scratch / "blind").mkdir()
    blind = Graph(source, scratch / "blind", int8_activations=True, row_dtype=row_dtype)
    numerics = Numerics(True, row_dtype, sees=True)
    runner = runner_of(source, scratch, numerics, blindfolded(blind.emitted.width))
    read = runner.run(Step((Span(0, 0, ids),), prefill=True))[0].copy()
    assert np.array_equal(read, blind.read(ids, [len(ids)]))
    decoded = runner.run(Step((Span(0, len(ids), (300,)),), prefill=False))[0].copy()
    assert np.array_equal(decoded, blind.run([300], len(ids))[0])
    return read, decoded
