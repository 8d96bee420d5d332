"""Random blocks of GGUF's types: matrices of any size at once, nothing is quantised.

Bits are random, scales such that a row's weights deviate by about the root of one over its length.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

POOL = 4096  # random blocks, of which a matrix is made
Raw = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Block:
    weights: int
    bytes: int
    deviation: float  # of random codes, at a scale of 1
    scale_at: int = 0
    minimum: float | None = None  # in scales: it stands behind the scale and centres the codes


BLOCKS = {
    "Q4_0": Block(32, 18, 4.6),
    "Q4_1": Block(32, 20, 4.6, minimum=-7.5),
    "Q5_0": Block(32, 22, 9.2),
    "Q5_1": Block(32, 24, 9.2, minimum=-15.5),
    "Q8_0": Block(32, 34, 74),
    "Q4_K": Block(256, 144, 200, minimum=7.5),
    "Q5_K": Block(256, 176, 400, minimum=15.5),
    "Q6_K": Block(256, 210, 1350, scale_at=208),
    "MXFP4": Block(32, 17, 5.9),
}


def random_blocks(
    random: np.random.Generator, sizes: tuple[int, ...], type: str, *, scale: float = 1.0
) -> Raw:
    """Bytes [..., bytes of a row] of a matrix of `sizes` [..., columns]."""
    block = BLOCKS[type]
    pool = random.integers(0, 256, (POOL, block.bytes), dtype=np.uint8)
    unit = scale * sizes[-1] ** -0.5 / block.deviation
    for at, value in _scales(type, unit).items():
        pool[:, at : at + len(value)] = value
    count = int(np.prod(sizes)) // block.weights
    return pool[random.integers(0, POOL, count)].reshape(stored(sizes, type))


def stored(sizes: tuple[int, ...], type: str) -> tuple[int, ...]:
    """What `sizes` are in bytes; of a type without blocks, in values."""
    if type not in BLOCKS:
        return sizes
    return (*sizes[:-1], sizes[-1] // BLOCKS[type].weights * BLOCKS[type].bytes)


def _scales(type: str, unit: float) -> dict[int, npt.NDArray[np.uint8]]:
    """By where they stand in a block."""
    block = BLOCKS[type]
    if type == "MXFP4":  # a power of two, of halves
        return {block.scale_at: np.array([round(128 + np.log2(unit))], np.uint8)}
    scales = {block.scale_at: np.array([unit], np.float16).view(np.uint8)}
    if block.minimum is not None:
        minimum = np.array([np.float16(unit) * block.minimum], np.float16)
        scales[block.scale_at + 2] = minimum.view(np.uint8)
    return scales
