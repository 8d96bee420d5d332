"""Reads a model folder of FastFlowLM's: config.json, and safetensors called model.q4nx.

Norms and the embedding are bfloat16, under Hugging Face's names. Matrices are tiles of 32 rows by
256 columns in 5,120 bytes: bfloat16 scales [8 blocks, 32 rows], minimums alike, then 4-bit codes
[2 halves, 256 columns, 16 rows], the even row in the low nibble. Rows of columns that 256 does not
divide are padded. A matrix without minimums has signed codes. So FastFlowLM's published converter
writes them (github.com/FastFlowLM/FLM_Q4NX_Converter, its Llama and Qwen3); families whose tensors
it moves or renames are refused.
"""

from math import prod
from pathlib import Path

import numpy as np

from flm.devices.device import Array
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.blocks import BlockFormat, Blocks, Matrix
from flm.graph.weights.gguf_types import FLOAT_TYPES
from flm.graph.weights.safetensors import TILES, SafetensorsFolder, StoredTensor

WEIGHTS = "model.q4nx"
ARCHITECTURES = ("llama", "qwen3")
ROWS, COLUMNS, BLOCK, TILE_BYTES = 32, 256, 32, 5120
_PART = 2 * ROWS * COLUMNS // BLOCK  # bytes of a tile's scales, and of its minimums


class Q4nxFolder(SafetensorsFolder):
    """As a Hugging Face folder; matrices stored as tiles come in the blocks they are stored in."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, files=WEIGHTS)
        kind = self.config.get("model_type")
        if kind not in ARCHITECTURES:
            raise UnsupportedModel(
                f"{path}: of FastFlowLM's folders flm reads {' and '.join(ARCHITECTURES)}, "
                f"this one is {kind!r}",
                fix="take a GGUF of the same model: flm list shows the tags",
            )
        # Stored rounded; config.json says exactly how they come about.
        if "rope_freqs.weight" in self and not self.config.get("rope_scaling"):
            raise BadModelFile(f"{path}/config.json has no rope_scaling, but the weights have")

    def matrix(self, name: str) -> Matrix:
        stored = self.stored(name)
        if stored.type is not TILES:
            return super().matrix(name)
        columns = self._columns(name)
        across = -(-columns // COLUMNS)
        count = prod(stored.shape[:-1])
        if stored.shape[-1] != TILE_BYTES or count % across or columns % BLOCK:
            raise UnsupportedModel(
                f"{self.path}: tensor {name} is stored as {stored.shape}, not in tiles of "
                f"{ROWS} by {COLUMNS} at 4 bits",
                fix="take a GGUF of the same model: flm list shows the tags",
            )
        tiles = _tiles(stored, across)
        is_signed = not tiles[0, :, _PART : 2 * _PART].any()
        format = BlockFormat(4, BLOCK, minimum=not is_signed)

        def read_blocks(rows: Array) -> Blocks:
            needed, place = np.unique(rows // ROWS, return_inverse=True)
            return _blocks(
                _tiles(stored, across)[needed], place * ROWS + rows % ROWS, format, columns
            )

        shape = (count // across * ROWS, columns)
        return Matrix(name, shape, format, read_blocks, lambda rows: read_blocks(rows).dense())

    def _columns(self, name: str) -> int:
        """A tile does not say how many stand side by side; config.json does."""
        try:
            width, heads = int(self.config["hidden_size"]), int(self.config["num_attention_heads"])
            inputs = {
                "o_proj": heads * int(self.config.get("head_dim") or width // heads),
                "down_proj": int(self.config["intermediate_size"]),
            }
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise BadModelFile(f"{self.path}/config.json: {error!r}") from error
        columns = inputs.get(name.split(".")[-2] if "." in name else name, width)
        if columns < 1:
            raise BadModelFile(f"{self.path}/config.json: {name} has {columns} columns")
        return columns


def _tiles(stored: StoredTensor, across: int) -> Array:
    """[rows / 32, across, bytes] uint8, mapped."""
    return stored.raw().reshape(-1, across, TILE_BYTES)


def _blocks(tiles: Array, rows: Array, format: BlockFormat, columns: int) -> Blocks:
    """`rows` of these tiles [n, across, bytes]."""
    tiles = np.asarray(tiles)
    count, across = tiles.shape[:2]

    def numbers(start: int) -> Array:
        """bfloat16 of each block: [rows, blocks] float32."""
        wide = FLOAT_TYPES[30].widen(tiles[..., start : start + _PART])
        by_row = wide.reshape(count, across, -1, ROWS).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(by_row.reshape(count * ROWS, -1)[rows, : columns // BLOCK])

    packed = tiles[..., 2 * _PART :].reshape(count, across, 2, COLUMNS, ROWS // 4)
    halves = np.stack([packed & 15, packed >> 4], axis=-1).reshape(count, across, 2, COLUMNS, -1)
    by_row = halves.transpose(0, 2, 4, 1, 3).reshape(count * ROWS, -1)
    codes = by_row[rows, :columns].reshape(len(rows), -1, BLOCK)
    scales = numbers(0)
    if format.minimum:
        return Blocks(format, codes, scales, numbers(_PART) + format.centre * scales)
    return Blocks(format, codes ^ 8, scales, None)
