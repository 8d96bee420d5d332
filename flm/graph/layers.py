"""Weights and the products with them: what every kind of graph is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flm.devices.device import Array
from flm.graph import functions
from flm.graph.emit import Emitter
from flm.graph.matrices import store_matrices
from flm.graph.weights.blocks import Matrix


@dataclass(frozen=True, slots=True)
class Numerics:
    """How a graph computes. int8 activations are how it is served; float32 is how it is proven."""

    int8_activations: bool = True
    row_dtype: str = "float32"  # of the KV cache: float32 or float16
    context_length: int | None = None  # where numbers depend on it; None: all the model takes
    sees: bool = False  # whether rows may come from pictures
    spread: bool = True  # and these stand in rows and columns, in a model that knows such

    @property
    def accuracy_level(self) -> int:
        return 4 if self.int8_activations else 0


class Layers:
    """Emits into one graph, and stores each weight once. Shapes: B lanes, T tokens."""

    def __init__(self, emitter: Emitter, numerics: Numerics) -> None:
        self.e = emitter
        self._numerics = numerics

    @property
    def accuracy_level(self) -> int:
        return self._numerics.accuracy_level

    @property
    def sees(self) -> bool:
        return self._numerics.sees

    @property
    def spread(self) -> bool:
        return self._numerics.spread

    def linear(self, x: str, *matrices: Matrix, output: str | None = None) -> str:
        """x [B,T,K] by the matrices, stacked by rows, and their biases: [B,T,N1+N2+...]."""
        outputs = [output] if output else 1
        if all(matrix.bias is None for matrix in matrices):
            return self._product(x, matrices, outputs)
        name = "+".join(matrix.name for matrix in matrices) + ".bias"
        parts = [np.zeros(m.shape[0], np.float32) if m.bias is None else m.bias for m in matrices]
        bias = self.e.weight(self.e.store.put(name, np.concatenate(parts)))
        return self.e.op("Add", [self._product(x, matrices, 1), bias], outputs)[0]

    def _product(self, x: str, matrices: Sequence[Matrix], outputs: int | list[str]) -> str:
        weight = store_matrices(self.e.store, matrices)
        if weight.format is None:
            inputs = [x, self.e.weight(weight.codes)]
            return self.e.call(functions.linear(), inputs, outputs)[0]
        assert weight.scales
        inputs = [x, self.e.weight(weight.codes), self.e.weight(weight.scales)]
        attributes: dict[str, Any] = {
            "K": weight.columns,
            "N": weight.rows,
            "bits": weight.format.bits,
            "block_size": weight.format.block,
            "accuracy_level": self.accuracy_level,
        }
        if weight.minimum is None:
            return self.e.call(functions.qlinear(), inputs, outputs, **attributes)[0]
        inputs.append(self.e.weight(weight.minimum))
        attributes["by_block"] = [0, 0, -1, weight.format.block]
        return self.e.call(functions.qlinear_min(), inputs, outputs, **attributes)[0]

    def linears(self, x: str, *matrices: Matrix) -> tuple[str, ...]:
        """One output a matrix; those of a format in one multiplication."""
        outputs: dict[str, str] = {}
        for format in dict.fromkeys(matrix.format for matrix in matrices):
            alike = [matrix for matrix in matrices if matrix.format == format]
            y: tuple[str, ...] = (self.linear(x, *alike),)
            if len(alike) > 1:
                sizes = self.e.constant([matrix.shape[0] for matrix in alike])
                y = self.e.op("Split", [y[0], sizes], len(alike), axis=-1)
            outputs |= zip((matrix.name for matrix in alike), y, strict=True)
        return tuple(outputs[matrix.name] for matrix in matrices)

    def split(self, x: str, count: int) -> tuple[str, ...]:
        """x [B,T,K] in `count` equal parts."""
        return self.e.op("Split", [x], count, axis=-1, num_outputs=count)

    def add(self, x: str, y: str) -> str:
        return self.e.op("Add", [x, y])[0]

    def vector(self, name: str, weight: Array) -> str:
        return self.e.weight(self.e.store.put(name, weight))
