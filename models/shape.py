"""The sizes of a decoder, checked before anything is built from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flm.errors import BadModelFile

LAYERS_MAX, WIDTH_MAX, CONTEXT_LENGTH_MAX = 1024, 2**18, 2**24


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_width: int
    epsilon: float
    context_length: int
    rope_base: float
    rope_scaling: dict[str, Any]


def contradiction(path: Path, what: str) -> BadModelFile:
    """For sizes in one file that cannot belong to one model."""
    return BadModelFile(
        f"{path}: {what}",
        fix="the file contradicts itself; get another conversion of this model",
    )


def check_shape(path: Path, shape: Shape) -> None:
    """Raises BadModelFile naming the size that cannot be."""
    limits = {
        "layers": LAYERS_MAX,
        "width": WIDTH_MAX,
        "mlp_width": WIDTH_MAX,
        "heads": WIDTH_MAX,
        "kv_heads": shape.heads,
        "head_width": 1024,
        "context_length": CONTEXT_LENGTH_MAX,
    }
    for name, most in limits.items():
        value = getattr(shape, name)
        if not 0 < value <= most:
            raise contradiction(path, f"{name} is {value}, between 1 and {most} was expected")
    if shape.heads % shape.kv_heads or shape.head_width % 2:
        raise contradiction(
            path, f"{shape.heads} heads of {shape.head_width} over {shape.kv_heads} kv heads"
        )
    if not 0 < shape.epsilon < 1 or not 1 < shape.rope_base < 1e12:
        raise contradiction(path, f"norm epsilon {shape.epsilon}, rope base {shape.rope_base}")
