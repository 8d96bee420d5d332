"""Where weights come from: a GGUF file or a folder of safetensors, read by name."""

from pathlib import Path
from typing import Protocol

from flm.devices.device import Array
from flm.graph.weights.blocks import Matrix


class WeightSource(Protocol):
    @property
    def path(self) -> Path: ...

    def __contains__(self, name: str) -> bool: ...

    def matrix(self, name: str) -> Matrix:
        """Raises BadModelFile when it is missing or not a matrix."""
        ...

    def vector(self, name: str) -> Array:
        """[n] float32. Raises BadModelFile when it is missing."""
        ...
