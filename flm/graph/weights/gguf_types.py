"""GGUF's block types, split exactly into codes, scales and minimums.

Layouts as llama.cpp writes them (ggml-common.h). A code that fits no 4-bit blocks of 32 is held in
8 bits, moved so that the middle of its range is 128; a minimum is moved there with it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flm.devices.device import Array
from flm.graph.weights.blocks import BlockFormat, Blocks


@dataclass(frozen=True, slots=True)
class BlockType:
    """One quantisation. `split` takes raw [rows, super-blocks, bytes] uint8."""

    name: str
    weights: int  # in one super-block
    bytes: int  # of one super-block
    format: BlockFormat
    split: Callable[[Array], tuple[Array, Array, Array | None]]

    def blocks(self, raw: Array) -> Blocks:
        """Raw rows [rows, bytes] to blocks."""
        rows = len(raw)
        codes, scales, minimum = self.split(raw.reshape(rows, -1, self.bytes))
        shape = (rows, -1, self.format.block)
        return Blocks(
            self.format,
            codes.reshape(shape),
            scales.reshape(rows, -1),
            None if minimum is None else minimum.reshape(rows, -1),
        )


@dataclass(frozen=True, slots=True)
class FloatType:
    """Weights stored as floats."""

    name: str
    bytes: int
    widen: Callable[[Array], Array]  # raw [rows, bytes] uint8 -> float32


def _half(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(raw: Array) -> Array:
    """ggml keeps the first half of a block in the low nibbles, the second in the high ones."""
    codes = np.empty((*raw.shape[:-1], 2, raw.shape[-1]), np.uint8)
    np.bitwise_and(raw, 15, out=codes[..., 0, :])
    np.right_shift(raw, 4, out=codes[..., 1, :])
    return codes.reshape(*raw.shape[:-1], -1)


def _q4_0(raw: Array) -> tuple[Array, Array, None]:
    return _nibbles(raw[..., 2:]), _half(raw[..., :2]), None


def _q4_1(raw: Array) -> tuple[Array, Array, Array]:
    scales = _half(raw[..., :2])
    return _nibbles(raw[..., 4:]), scales, _half(raw[..., 2:4]) + 8 * scales


def _fifth_bits(raw: Array) -> Array:
    bits = np.ascontiguousarray(raw).view(np.uint32)[..., 0]
    return ((bits[..., None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << 4


def _q5_0(raw: Array) -> tuple[Array, Array, None]:
    codes = _nibbles(raw[..., 6:]) | _fifth_bits(raw[..., 2:6])
    return codes + 112, _half(raw[..., :2]), None


def _q5_1(raw: Array) -> tuple[Array, Array, Array]:
    codes = _nibbles(raw[..., 8:]) | _fifth_bits(raw[..., 4:8])
    scales = _half(raw[..., :2])
    return codes + 112, scales, _half(raw[..., 2:4]) + 16 * scales


def _q8_0(raw: Array) -> tuple[Array, Array, None]:
    return raw[..., 2:] ^ 0x80, _half(raw[..., :2]), None  # signed byte + 128


def _k_scales(raw: Array) -> tuple[Array, Array]:
    """Twelve bytes hold eight 6-bit scales and eight 6-bit minimums."""
    low, middle, high = raw[..., 0:4], raw[..., 4:8], raw[..., 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    minimum = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    return scales, minimum


def _k(raw: Array, codes: Array, middle: int) -> tuple[Array, Array, Array]:
    small_scales, small_minimum = _k_scales(raw[..., 4:16])
    scales = _half(raw[..., :2])[..., None] * small_scales
    return codes, scales, middle * scales - _half(raw[..., 2:4])[..., None] * small_minimum


def _k_nibbles(raw: Array) -> Array:
    """[..., 128] bytes to [..., 8, 32] codes: 32 low nibbles, then the same bytes' high ones."""
    return _nibbles(raw.reshape(*raw.shape[:-1], 4, 32)).reshape(*raw.shape[:-1], 8, 32)


def _q4_k(raw: Array) -> tuple[Array, Array, Array]:
    return _k(raw, _k_nibbles(raw[..., 16:]), 8)


def _q5_k(raw: Array) -> tuple[Array, Array, Array]:
    high = np.stack([((raw[..., 16:48] >> bit) & 1) << 4 for bit in range(8)], axis=-2)
    return _k(raw, (_k_nibbles(raw[..., 48:]) | high) + 112, 16)


def _q6_k(raw: Array) -> tuple[Array, Array, None]:
    low = raw[..., :128].reshape(*raw.shape[:-1], 2, 64)
    high = raw[..., 128:192].reshape(*raw.shape[:-1], 2, 32)
    codes = np.stack(
        [
            (low[..., :32] & 15) | ((high & 3) << 4),
            (low[..., 32:] & 15) | (((high >> 2) & 3) << 4),
            (low[..., :32] >> 4) | (((high >> 4) & 3) << 4),
            (low[..., 32:] >> 4) | (((high >> 6) & 3) << 4),
        ],
        axis=-2,
    )
    scales = np.ascontiguousarray(raw[..., 192:208]).view(np.int8).astype(np.float32)
    return codes + 96, _half(raw[..., 208:210])[..., None] * scales, None


def _quarters(raw: Array) -> Array:
    """[..., 64] bytes to [..., 8, 32] codes of two bits: 32 bytes hold four runs, lowest first."""
    halves = raw.reshape(*raw.shape[:-1], 2, 1, 32)
    shifted = halves >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return (shifted & 3).reshape(*raw.shape[:-1], 8, 32)


def _q2_k(raw: Array) -> tuple[Array, Array, Array]:
    codes = _quarters(raw[..., 16:80]) + 126
    scales = _half(raw[..., 80:82])[..., None] * (raw[..., :16] & 15)
    small = _half(raw[..., 82:84])[..., None] * (raw[..., :16] >> 4)
    return codes, scales, 2 * scales - small


def _q3_k(raw: Array) -> tuple[Array, Array, None]:
    high = (raw[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    low, top = raw[..., 96:104], raw[..., 104:108]
    sixes = np.concatenate([low & 15, low >> 4], axis=-1)
    tops = [((top >> bit) & 3) << 4 for bit in (0, 2, 4, 6)]
    small = (sixes | np.concatenate(tops, axis=-1)).astype(np.float32) - 32
    codes = (_quarters(raw[..., 32:96]) | (high << 2)) + 124
    return codes, _half(raw[..., 108:110])[..., None] * small, None


# What the codes of IQ4 stand for, moved from signed bytes to ours.
_IQ4 = np.array(
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241], dtype=np.uint8
)


def _iq4_nl(raw: Array) -> tuple[Array, Array, None]:
    return _IQ4[_nibbles(raw[..., 2:])], _half(raw[..., :2]), None


def _iq4_xs(raw: Array) -> tuple[Array, Array, None]:
    low = np.stack([raw[..., 4:8] & 15, raw[..., 4:8] >> 4], axis=-1)
    high = (raw[..., 2:4, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
    shape = (*raw.shape[:-1], 8)
    small = (low.reshape(shape) | (high.reshape(shape) << 4)).astype(np.float32) - 32
    codes = _IQ4[_nibbles(raw[..., 8:].reshape(*shape, 16))]
    return codes, _half(raw[..., :2])[..., None] * small, None


# Twice the values of MXFP4's 4-bit codes, moved by 128.
_MXFP4 = np.array(
    [128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116], dtype=np.uint8
)


def mxfp4(nibbles: Array, exponents: Array) -> tuple[Array, Array]:
    """Codes and scales, both exact: a scale is half a power of two."""
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    return _MXFP4[nibbles], scales


def _mxfp4(raw: Array) -> tuple[Array, Array, None]:
    return *mxfp4(_nibbles(raw[..., 1:]), raw[..., 0]), None


def _bf16(raw: Array) -> Array:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, BlockFormat(4, 32, minimum=False), _q4_0),
    3: BlockType("Q4_1", 32, 20, BlockFormat(4, 32, minimum=True), _q4_1),
    6: BlockType("Q5_0", 32, 22, BlockFormat(8, 32, minimum=False), _q5_0),
    7: BlockType("Q5_1", 32, 24, BlockFormat(8, 32, minimum=True), _q5_1),
    8: BlockType("Q8_0", 32, 34, BlockFormat(8, 32, minimum=False), _q8_0),
    10: BlockType("Q2_K", 256, 84, BlockFormat(8, 16, minimum=True), _q2_k),
    11: BlockType("Q3_K", 256, 110, BlockFormat(8, 16, minimum=False), _q3_k),
    12: BlockType("Q4_K", 256, 144, BlockFormat(4, 32, minimum=True), _q4_k),
    13: BlockType("Q5_K", 256, 176, BlockFormat(8, 32, minimum=True), _q5_k),
    14: BlockType("Q6_K", 256, 210, BlockFormat(8, 16, minimum=False), _q6_k),
    20: BlockType("IQ4_NL", 32, 18, BlockFormat(8, 32, minimum=False), _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, BlockFormat(8, 32, minimum=False), _iq4_xs),
    39: BlockType("MXFP4", 32, 17, BlockFormat(8, 32, minimum=False), _mxfp4),
}
FLOAT_TYPES = {
    0: FloatType("F32", 4, lambda raw: np.ascontiguousarray(raw).view(np.float32)),
    1: FloatType(
        "F16", 2, lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float32)
    ),
    30: FloatType("BF16", 2, _bf16),
}
# Known to llama.cpp, not to us: named in the refusal.
OTHER_TYPES = {
    15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip
