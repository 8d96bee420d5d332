"""A family's tensors by our names, each checked against the size it must have."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from flm.devices.device import Array
from flm.graph.weights.blocks import Matrix, dense, quantized
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.models import names
from flm.models.family import Source
from flm.models.shape import contradiction


@dataclass(frozen=True, slots=True)
class Weights:
    """`gguf` and `hugging_face` map our names to each source's, with {} for the layer; `sizes` to
    (rows, columns) of a matrix or (size,) of a vector, None for any. `norm_less` is what Hugging
    Face's norms are stored without. Floats of a folder are rounded; the `sensitive` keep 8 bits.
    """

    source: Source
    gguf: Mapping[str, str]
    hugging_face: Mapping[str, str]
    sizes: Mapping[str, tuple[int | None, ...]]
    norm_less: float = 0.0
    sensitive: Set[str] = names.SENSITIVE

    @property
    def is_gguf(self) -> bool:
        return isinstance(self.source, GgufFile)

    def name(self, name: str, layer: int = 0) -> str:
        return self._table[name].format(layer)

    def has(self, name: str) -> bool:
        return name in self._table and self.name(name) in self.source

    @property
    def _table(self) -> Mapping[str, str]:
        return self.gguf if self.is_gguf else self.hugging_face

    def matrix(self, name: str, layer: int = 0) -> Matrix:
        """With its bias, where the table names NAME_bias. Raises BadModelFile when it is missing or
        of another size.
        """
        matrix = self.source.matrix(self.name(name, layer))
        self._check(matrix.name, matrix.shape, self.sizes[name])
        folder = self.source
        if isinstance(folder, SafetensorsFolder) and folder.quantized and matrix.format is None:
            matrix = quantized(matrix, 8 if name in self.sensitive else folder.bits)
        return self._biased(matrix, name, layer)

    def floats(self, name: str, layer: int = 0) -> Matrix:
        """A small matrix as it is stored, not quantised on the way in."""
        theirs, (rows, columns) = self.name(name, layer), self.sizes[name]
        assert rows
        assert columns
        vector = self.source.vector(theirs)
        self._check(theirs, vector.shape, (rows * columns,))
        return self._biased(dense(theirs, vector.reshape(rows, columns)), name, layer)

    def _biased(self, matrix: Matrix, name: str, layer: int) -> Matrix:
        if f"{name}_bias" not in self._table:
            return matrix
        bias = self.name(f"{name}_bias", layer)
        vector = self.source.vector(bias)
        self._check(bias, vector.shape, (matrix.shape[0],))
        return replace(matrix, bias=vector)

    def vector(self, name: str, layer: int = 0) -> Array:
        """[size] float32."""
        vector = self.source.vector(self.name(name, layer))
        self._check(self.name(name, layer), vector.shape, self.sizes[name])
        return vector

    def norm(self, name: str, layer: int = 0) -> tuple[str, Array]:
        """(tensor name, plain weight [size])."""
        vector = self.vector(name, layer)
        return self.name(name, layer), vector if self.is_gguf else vector + self.norm_less

    def _check(self, name: str, shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
        fits = len(shape) == len(wanted) and all(
            want in (None, size) for size, want in zip(shape, wanted, strict=True)
        )
        if not fits:
            raise contradiction(self.source.path, f"tensor {name} is {shape}, not {wanted}")
