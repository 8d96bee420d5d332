"""Reads a Hugging Face folder: config.json and safetensors, mapped, quantised on the way in.

Matrices become symmetric 8-bit blocks of 32; where a row is not a multiple of 32 they stay floats.
Format: github.com/huggingface/safetensors (an 8-byte length, JSON, then the bytes).
"""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from flm.core.json_file import read_json_object
from flm.devices.device import Array
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.blocks import BlockFormat, Blocks, Matrix, quantize
from flm.graph.weights.gguf_types import FLOAT_TYPES, FloatType

HEADER_BYTES_MAX = 128 * 2**20
IMPORTED = BlockFormat(bits=8, block=32, minimum=False)
_TYPES = {"F32": FLOAT_TYPES[0], "F16": FLOAT_TYPES[1], "BF16": FLOAT_TYPES[30]}


@dataclass(frozen=True, slots=True)
class _Stored:
    shape: tuple[int, ...]
    type: FloatType
    raw: Array  # [bytes] uint8, in the file


class SafetensorsFolder:
    """`config` is config.json. With `quantized` False matrices stay as they are stored."""

    def __init__(self, path: Path, *, quantized: bool = True) -> None:
        self.path = path
        self.config = read_json_object(path / "config.json")
        self._quantized = quantized
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise BadModelFile(
                f"{path} holds no .safetensors file",
                fix="give a complete Hugging Face model folder, or a .gguf file",
            )
        self._tensors: dict[str, _Stored] = {}
        for file in files:
            self._tensors |= _read(file)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def _stored(self, name: str) -> _Stored:
        if name not in self._tensors:
            raise BadModelFile(
                f"{self.path}: tensor {name} is missing",
                fix="the folder is incomplete or of an unknown variant; download it again",
            )
        return self._tensors[name]

    def matrix(self, name: str) -> Matrix:
        """Of a tensor of two dimensions, or of three: matrices stacked by rows."""
        stored = self._stored(name)
        if len(stored.shape) not in (2, 3):
            raise BadModelFile(
                f"{self.path}: tensor {name} has shape {stored.shape}, a matrix was expected"
            )
        rows, columns = prod(stored.shape[:-1]), stored.shape[-1]
        raw = stored.raw.reshape(rows, -1)

        def read_dense(rows: Array) -> Array:
            return stored.type.widen(raw[rows])

        def read_blocks(rows: Array) -> Blocks:
            return quantize(read_dense(rows), IMPORTED)

        if not self._quantized or columns % IMPORTED.block:
            return Matrix(name, (rows, columns), None, read_blocks, read_dense)
        return Matrix(
            name, (rows, columns), IMPORTED, read_blocks, lambda rows: read_blocks(rows).dense()
        )

    def vector(self, name: str) -> Array:
        stored = self._stored(name)
        return stored.type.widen(stored.raw).reshape(-1)


def _read(path: Path) -> dict[str, _Stored]:
    damaged = BadModelFile(f"{path} is truncated or damaged")
    try:
        data: Array = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise BadModelFile(f"{path} cannot be read: {error}", fix="check the file") from error
    if len(data) < 8:
        raise damaged
    length = int(np.frombuffer(data[:8].tobytes(), "<u8")[0])
    if length > min(HEADER_BYTES_MAX, len(data) - 8):
        raise damaged
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
        entries = {k: v for k, v in header.items() if k != "__metadata__"}
        return {name: _place(path, data[8 + length :], name, e) for name, e in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged from error


def _place(path: Path, data: Array, name: str, entry: dict[str, Any]) -> _Stored:
    if entry["dtype"] not in _TYPES:
        raise UnsupportedModel(
            f"{path}: tensor {name} is stored as {entry['dtype']}; {', '.join(_TYPES)} are read",
            fix="take the bf16 weights, or a GGUF of this model",
        )
    type, shape = _TYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"])
    start, end = (int(offset) for offset in entry["data_offsets"])
    if not 0 <= start <= end <= len(data) or end - start != prod(shape) * type.bytes:
        raise ValueError(name)
    return _Stored(shape, type, data[start:end])
