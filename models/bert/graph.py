"""BERT as an encoder of texts: every token attends to all of its text, and a text is one vector.

It carries no memory. Inputs: `ids` [B,T] int64, padded at their ends, and `lengths` [B] int32.
Output: `embedding` [B,width] float32 of length 1. Texts are short and are compared by angles, so
weights stay the floats they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flm.core.json_file import read_json_object
from flm.devices.device import EMBEDDING, IDS, LENGTHS, MICROSOFT
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph import functions
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.matrices import store_matrices, store_rows
from flm.graph.weights.blocks import Matrix
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.memory.layout import MemoryLayout
from flm.models.bert import names
from flm.models.family import Emitted, Source
from flm.models.shape import LAYERS_MAX, WIDTH_MAX, contradiction
from flm.models.weights import Weights

POOLING = "1_Pooling/config.json"  # as sentence-transformers writes it
FIRST_POOLED = "pooling_mode_cls_token"
FLOAT = 1  # onnx.TensorProto's


@dataclass(frozen=True, slots=True)
class Shape:
    """`first`: a text's vector is its first token's, not the mean of all."""

    layers: int
    width: int
    mlp_width: int
    heads: int
    epsilon: float
    positions: int
    context_length: int
    first: bool


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    if not isinstance(source, SafetensorsFolder):
        raise UnsupportedModel(
            f"{source.path} is an encoder in a GGUF file",
            fix="take its Hugging Face folder, or flm pull all-minilm",
        )
    shape = _shape(source)
    w = Weights(source, {}, names.HUGGING_FACE, _sizes(shape))
    encoder = _Encoder(emitter, w, shape)
    x = encoder.embedded()
    for layer in range(shape.layers):
        with emitter.scope(f"layers.{layer}"):
            x = encoder.layer(x, layer)
    encoder.pooled(x)
    return Emitted(MemoryLayout(()), w.matrix("words").shape[0], shape.context_length)


class _Encoder:
    def __init__(self, emitter: Emitter, weights: Weights, shape: Shape) -> None:
        self._e, self._w, self._s = emitter, weights, shape
        self._ids = emitter.input(IDS, "int64", ["B", "T"])
        self._lengths = emitter.input(LENGTHS, "int32", ["B"])
        (self._count,) = emitter.op("Shape", [self._ids], start=1, end=2)

    def embedded(self) -> str:
        """[B,T,width] of words and the places they stand at; all are of the first type."""
        e, zero = self._e, self._e.constant([0])
        (places,) = e.op("Slice", [self._rows("positions"), zero, self._count])
        (words,) = e.call(functions.embedding(), [self._ids, self._rows("words")])
        (first,) = e.op("Gather", [self._rows("types"), e.constant(0)])
        (x,) = e.op("Add", [words, places])
        return self._norm(x, first, "norm")

    def layer(self, x: str, layer: int) -> str:
        e, w = self._e, self._w
        mixers = [w.matrix(name, layer) for name in ("query", "key", "value")]
        stacked = e.weight(store_matrices(e.store, mixers).codes)
        (mixed,) = e.op(
            "Attention",
            [x, stacked, self._biases(mixers), self._lengths],
            domain=MICROSOFT,
            num_heads=self._s.heads,
        )
        x = self._norm(self._linear(mixed, w.matrix("output", layer)), x, "mixer_norm", layer)
        up = w.matrix("up", layer)
        (wide,) = e.op("BiasGelu", [self._product(x, up), self._biases([up])], domain=MICROSOFT)
        return self._norm(self._linear(wide, w.matrix("down", layer)), x, "mlp_norm", layer)

    def pooled(self, x: str) -> None:
        e = self._e
        if self._s.first:
            (vector,) = e.op("Gather", [x, e.constant(0)], axis=1)
        else:
            (count,) = e.op("Squeeze", [self._count])
            (places,) = e.op("Range", [e.constant(0), count, e.constant(1)])
            (lengths,) = e.op("Unsqueeze", [self._lengths, e.constant([1])])
            (wide,) = e.op("Cast", [lengths], to=7)
            (real,) = e.op("Less", [places, wide])
            (weights,) = e.op("Cast", [real], to=FLOAT)
            (rows,) = e.op("Unsqueeze", [weights, e.constant([1])])
            (sums,) = e.op("MatMul", [rows, x])  # [B,1,T] by [B,T,width]
            (sum_,) = e.op("Squeeze", [sums, e.constant([1])])
            (divisor,) = e.op("Cast", [lengths], to=FLOAT)
            (vector,) = e.op("Div", [sum_, divisor])
        e.output(EMBEDDING, "float32", ["B", self._s.width])
        e.op("LpNormalization", [vector], [EMBEDDING], axis=-1, p=2)

    def _rows(self, name: str) -> str:
        return self._e.weight(store_rows(self._e.store, self._w.matrix(name)).codes)

    def _norm(self, x: str, skip: str, name: str, layer: int = 0) -> str:
        """Of x + skip."""
        vectors = [self._vector(name, layer), self._vector(f"{name}_bias", layer)]
        (sum_,) = self._e.op("Add", [x, skip])
        inputs = [sum_, *vectors]
        return self._e.op("LayerNormalization", inputs, axis=-1, epsilon=self._s.epsilon)[0]

    def _vector(self, name: str, layer: int) -> str:
        theirs = self._w.name(name, layer)
        return self._e.weight(self._e.store.put(theirs, self._w.vector(name, layer)))

    def _product(self, x: str, matrix: Matrix) -> str:
        weight = self._e.weight(store_matrices(self._e.store, [matrix]).codes)
        return self._e.call(functions.linear(), [x, weight])[0]

    def _linear(self, x: str, matrix: Matrix) -> str:
        return self._e.op("Add", [self._product(x, matrix), self._biases([matrix])])[0]

    def _biases(self, matrices: list[Matrix]) -> str:
        name = "+".join(matrix.name for matrix in matrices) + ".bias"
        parts = [matrix.bias for matrix in matrices if matrix.bias is not None]
        return self._e.weight(self._e.store.put(name, np.concatenate(parts)))


def _shape(source: SafetensorsFolder) -> Shape:
    config = source.config
    kind = config.get("hidden_act"), config.get("position_embedding_type", "absolute")
    if kind != ("gelu", "absolute"):
        raise UnsupportedModel(
            f"{source.path} is a BERT with {kind[0]} and {kind[1]} positions, which flm does not "
            "build",
            fix="take all-minilm",
        )
    try:
        shape = _read(config, source)
    except (KeyError, TypeError, ValueError) as error:
        raise BadModelFile(f"config.json: {error!r}") from error
    limits = {"layers": LAYERS_MAX, "width": WIDTH_MAX, "mlp_width": WIDTH_MAX, "heads": WIDTH_MAX}
    limits |= {"positions": WIDTH_MAX, "context_length": shape.positions}
    for name, most in limits.items():
        if not 0 < getattr(shape, name) <= most:
            raise contradiction(source.path, f"{name} is {getattr(shape, name)}, of at most {most}")
    if shape.width % shape.heads or not 0 < shape.epsilon < 1:
        raise contradiction(source.path, f"{shape.heads} heads of {shape.width}")
    return shape


def _read(config: Mapping[str, Any], source: SafetensorsFolder) -> Shape:
    positions = int(config["max_position_embeddings"])
    told = read_json_object(source.path / "sentence_bert_config.json")
    return Shape(
        layers=int(config["num_hidden_layers"]),
        width=int(config["hidden_size"]),
        mlp_width=int(config["intermediate_size"]),
        heads=int(config["num_attention_heads"]),
        epsilon=float(config["layer_norm_eps"]),
        positions=positions,
        context_length=int(told.get("max_seq_length") or positions),
        first=bool(read_json_object(source.path / POOLING).get(FIRST_POOLED)),
    )


def _sizes(s: Shape) -> dict[str, tuple[int | None, ...]]:
    square: tuple[int | None, ...] = (s.width, s.width)
    norms = ("norm", "norm_bias", "mixer_norm", "mixer_norm_bias", "mlp_norm", "mlp_norm_bias")
    return {
        "words": (None, s.width),
        "positions": (s.positions, s.width),
        "types": (None, s.width),
        **dict.fromkeys(("query", "key", "value", "output"), square),
        "up": (s.mlp_width, s.width),
        "down": (s.width, s.mlp_width),
        **dict.fromkeys(norms, (s.width,)),
    }
