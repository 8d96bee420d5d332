"""Models that see, driven by hand: their tower's rows, and what the runner reads with them."""

from pathlib import Path
from typing import Any

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

    def __init__(self, folder: Path, scratch: Path) -> None:
        source = SafetensorsFolder(folder, quantized=False)
        self.eyes = eyes_of(source, scratch)
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
