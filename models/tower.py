"""What picture towers share: the frame of their layers, and what a file says of how they see.

A family's own tower.py names its tensors and says how pictures come in, which attend to which, and
how they become rows of the text model's width. Shapes: N patches of one view.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flm.core.json_file import read_json_object
from flm.core.picture import Colour, Sight
from flm.devices.device import EMBEDDING, Array
from flm.errors import BadModelFile
from flm.graph import functions, sight
from flm.graph.emit import Emitter
from flm.graph.layers import Layers, Numerics
from flm.graph.weights.blocks import Matrix, dense, quantized
from flm.graph.weights.gguf import GgufFile
from flm.models.family import Source
from flm.models.shape import LAYERS_MAX, WIDTH_MAX, contradiction
from flm.models.weights import Weights

PATCH_MAX, MERGE_MAX, SIDE_MAX = 64, 8, 1024  # of what a file says of how it sees
GREY: Colour = (0.5, 0.5, 0.5)  # mean and deviation of most
ROTARY_BASE = 10000.0
BLOCK = 32  # of a row's weights, rounded with one scale
MLP = ("gate", "up", "down")
PROJECTORS = ("clip.projector_type", "clip.vision.projector_type")

# (query, key and value [1,N,width] each, layer) -> [1,N,width]
Attend = Callable[[Sequence[str], int], str]


@dataclass(frozen=True, slots=True)
class TowerShape:
    """`out_width` is that of the rows it makes, with all their parts. Norms that are `rms` take no
    mean and have no bias; `gated` is its MLP.
    """

    layers: int
    width: int
    mlp_width: int
    heads: int
    out_width: int
    sight: Sight
    epsilon: float = 1e-6  # of its norms
    rms: bool = False
    gated: bool = False

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def patch_values(self) -> int:
        """Floats of a patch at once, in a layer at work: measured, within a third. What comes in,
        queries, keys and values and these by heads; the MLP's, before and behind its bend.
        """
        return 12 * self.width + 4 * self.mlp_width

    @property
    def merged_width(self) -> int:
        return self.width * self.sight.merge**2


class Tower(Layers):
    """Emits layers of a norm, attention, a norm and an MLP, each branch added to what came in."""

    def __init__(
        self, emitter: Emitter, numerics: Numerics, weights: Weights, shape: TowerShape
    ) -> None:
        super().__init__(emitter, numerics)
        self.w, self.s = weights, shape

    def layer(self, x: str, layer: int, attend: Attend) -> str:
        """Of x [1,N,width], likewise. Query, key and value are one matrix, "mixed", if a file has
        them so.
        """
        with self.e.scope(f"layers.{layer}"):
            attended = attend(self._qkv(self.norm(x, "mixer_norm", layer), layer), layer)
            x = self.add(x, self.linear(attended, self.matrix("output", layer)))
            bent = self._bent(self.norm(x, "mlp_norm", layer), layer)
            return self.add(x, self.linear(bent, self.matrix("down", layer)))

    def _bent(self, x: str, layer: int) -> str:
        up = self.matrix("up", layer)
        if not self.s.gated:
            return self.gelu(self.linear(x, up), tanh=True)
        return self.e.call(functions.swiglu(), self.linears(x, self.matrix("gate", layer), up))[0]

    def _qkv(self, x: str, layer: int) -> Sequence[str]:
        if self.w.has("mixed"):
            return self.split(self.linear(x, self.matrix("mixed", layer)), 3)
        return self.linears(x, *(self.matrix(each, layer) for each in ("query", "key", "value")))

    def norm(self, x: str, name: str, layer: int = 0) -> str:
        if self.s.rms:
            weight = self.vector(self.w.name(name, layer), self.w.vector(name, layer))
            return self.e.call(functions.rms_norm(), [x, weight], epsilon=self.s.epsilon)[0]
        parts = [
            self.vector(self.w.name(part, layer), self.w.vector(part, layer))
            for part in (name, f"{name}_bias")
        ]
        return self.e.call(sight.layer_norm(), [x, *parts], epsilon=self.s.epsilon)[0]

    def gelu(self, x: str, *, tanh: bool) -> str:
        return self.e.call(sight.gelu(tanh=tanh), [x])[0]

    def matrix(self, name: str, layer: int = 0) -> Matrix:
        """As it is stored, but floats of a file or a folder rounded to 8 bits where their rows are
        whole blocks; those of an MLP are made so by values that come to nothing (there are towers
        with 3420 and 4304). Graphs that are proven keep them.
        """
        rows, columns = (size or 0 for size in self.w.sizes[name])
        as_stored = columns % BLOCK and not self.w.is_gguf
        matrix = self.w.floats(name, layer) if as_stored else self.w.matrix(name, layer)
        if not self.accuracy_level:
            return matrix
        if name in MLP:
            wide = -(-self.s.mlp_width // BLOCK) * BLOCK
            shape = (rows, wide) if name == "down" else (wide, columns)
            matrix = matrix.widened(*shape)
        return quantized(matrix, 8) if matrix.format is None else matrix

    def attend(self, qkv: Sequence[str], layer: int) -> str:
        """All of a row of x [rows,N,width] attend to all of it; nothing turns."""
        scale = self.s.head_width**-0.5
        attributes = {"num_heads": self.s.heads, "scale": scale}
        return self.e.call(sight.plain_attention(), list(qkv), **attributes)[0]

    def cells(self, x: str) -> str:
        """x [1,N,width], the patches of a cell as one: [M,merged width]."""
        return self.e.op("Reshape", [x, self.e.constant([-1, self.s.merged_width])])[0]

    def merged(self, x: str, *deep: str) -> None:
        """Rows of x [1,N,width], those of a cell as one, to the text model's width: the output,
        with further parts of these rows, `deep`, behind.
        """
        x = self.cells(self.norm(x, "norm"))
        bent = self.gelu(self.linear(x, self.matrix("merge_up")), tanh=False)
        row = self.linear(bent, self.matrix("merge_down"), output=None if deep else EMBEDDING)
        if deep:
            self.e.op("Concat", [row, *deep], [EMBEDDING], axis=-1)
        self.e.output(EMBEDDING, "float32", ["M", self.s.out_width])

    def turned(
        self, cells: str, windows: Sequence[str] = (), is_full: Sequence[bool] = ()
    ) -> Attend:
        """Half of a head's pairs turn by the row and half by the column, `cells` [N,2]. All patches
        attend to all; or, at layers that are not full, within `windows`: what a graph has of those
        (sight.window_attention).
        """
        pairs = self.s.head_width // 2
        steps: Array = ROTARY_BASE ** (-np.arange(0, pairs, 2) / pairs)
        (wide,) = self.e.op("Cast", [cells], to=1)
        (each,) = self.e.op("Unsqueeze", [wide, self.e.constant([2])])
        turn = self.vector("tower.rotary", steps.astype(np.float32))
        (angles,) = self.e.op("Mul", [each, turn])
        (flat,) = self.e.op("Reshape", [angles, self.e.constant([0, pairs])])
        (cos,), (sin,) = self.e.op("Cos", [flat]), self.e.op("Sin", [flat])
        (count,) = self.e.op("Shape", [cells], end=1)
        (count,) = self.e.op("Squeeze", [count])
        (turns,) = self.e.op("Range", [self.e.constant(0), count, self.e.constant(1)])
        (turns,) = self.e.op("Unsqueeze", [turns, self.e.constant([0])])

        def attend(qkv: Sequence[str], layer: int) -> str:
            inputs = [*qkv, cos, sin, turns]
            attributes: dict[str, Any] = {
                "num_heads": self.s.heads,
                "width": self.s.head_width,
                "scale": self.s.head_width**-0.5,
            }
            if not windows or is_full[layer]:
                return self.e.call(sight.full_attention(), inputs, **attributes)[0]
            attributes["flat"] = [1, -1, self.s.width]
            return self.e.call(sight.window_attention(), [*inputs, *windows], **attributes)[0]

        return attend


def patch_matrix(w: Weights, s: TowerShape) -> Matrix:
    """[width, 3*patch*patch] of "patch". Where patches are of two frames, alike in a still picture,
    it is the sum of both: one tensor in a folder, two in a GGUF file.
    """
    size = 3 * s.sight.patch**2
    frames = [w.source.vector(w.name("patch"))]
    if w.is_gguf and "patch_other" in w.gguf:
        frames.append(w.source.vector(w.name("patch_other")))
    elif frames[0].size == 2 * s.width * size:
        both = frames[0].reshape(s.width, 3, 2, s.sight.patch**2)
        frames = [both[:, :, 0], both[:, :, 1]]
    if any(frame.size != s.width * size for frame in frames):
        raise contradiction(w.source.path, f"tensor {w.name('patch')} is not {s.width} patches")
    summed: Array = np.asarray(sum(frame.reshape(s.width, size) for frame in frames))
    bias = w.vector("patch_bias") if w.has("patch_bias") else None
    return replace(dense("tower.patch", summed), bias=bias)


def sizes_of(s: TowerShape) -> dict[str, tuple[int | None, ...]]:
    """Of the tensors that the frame takes."""
    return {
        "patch_bias": (s.width,),
        "mixed": (3 * s.width, s.width),
        **dict.fromkeys(("query", "key", "value"), (s.width, s.width)),
        "output": (s.width, s.width),
        "up": (s.mlp_width, s.width),
        "down": (s.width, s.mlp_width),
        **dict.fromkeys(("mixer_norm", "mixer_norm_bias"), (s.width,)),
        **dict.fromkeys(("mlp_norm", "mlp_norm_bias"), (s.width,)),
        **dict.fromkeys(("norm", "norm_bias"), (s.width,)),
    }


def count_of(source: GgufFile, key: str, default: int | None = None) -> int:
    """What an mmproj file says, or else this. Raises BadModelFile where neither is."""
    return int(source.number(f"clip.vision.{key}", default))


def file_sizes(source: GgufFile) -> dict[str, Any]:
    """Of a TowerShape what every mmproj file says, by the same keys."""
    return {
        "layers": count_of(source, "block_count"),
        "width": count_of(source, "embedding_length"),
        "mlp_width": count_of(source, "feed_forward_length"),
        "heads": count_of(source, "attention.head_count"),
        "out_width": count_of(source, "projection_dim"),
        "epsilon": source.number("clip.vision.attention.layer_norm_epsilon", 1e-6),
    }


def shape_by(
    source: Source,
    of_gguf: Callable[[Any], TowerShape],
    of_folder: Callable[[Any], TowerShape],
) -> TowerShape:
    """What either makes of the file. Raises BadModelFile, or what they raise."""
    try:
        shape = of_gguf(source) if isinstance(source, GgufFile) else of_folder(source)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise BadModelFile(f"{source.path}: its picture tower: {error!r}") from error
    sizes = {
        "layers": (shape.layers, LAYERS_MAX),
        "width": (shape.width, WIDTH_MAX),
        "mlp_width": (shape.mlp_width, WIDTH_MAX),
        "heads": (shape.heads, shape.width),
        "out_width": (shape.out_width, WIDTH_MAX),
        "patch": (shape.sight.patch, PATCH_MAX),
        "merge": (shape.sight.merge, MERGE_MAX),
        "side": (shape.sight.side, SIDE_MAX),
    }
    for name, (value, most) in sizes.items():
        if not 0 < value <= most:
            raise contradiction(source.path, f"its tower's {name} is {value}, of at most {most}")
    if shape.width % (4 * shape.heads):
        raise contradiction(source.path, f"a tower with {shape.heads} heads of {shape.width}")
    return shape


def projector(source: GgufFile) -> object:
    """What llama.cpp calls this kind of tower."""
    return next((source.metadata[key] for key in PROJECTORS if key in source.metadata), None)


def processor(source: Source) -> Mapping[str, Any]:
    """A folder's preprocessor_config.json, as far as there is one."""
    return (
        {}
        if isinstance(source, GgufFile)
        else read_json_object(source.path / "preprocessor_config.json")
    )


def colours(source: Source, mean: Colour = GREY, deviation: Colour = GREY) -> tuple[Colour, Colour]:
    """Mean and deviation of a colour, as the file says, or else these."""
    said = source.metadata if isinstance(source, GgufFile) else processor(source)
    prefix = "clip.vision." if isinstance(source, GgufFile) else ""
    deviation = _colour(said.get(prefix + "image_std", deviation))
    mean = _colour(said.get(prefix + "image_mean", mean))
    if min(deviation) <= 0:
        raise contradiction(source.path, f"colours with a deviation of {deviation}")
    return mean, deviation


def _colour(said: Any) -> Colour:
    red, green, blue = (float(each) for each in said)
    return red, green, blue
