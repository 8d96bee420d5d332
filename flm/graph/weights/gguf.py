"""Reads a GGUF file: metadata and tensors, mapped while they are read, never copied whole.

A GGUF comes from anywhere, so nothing in it is believed: every count, length and offset is checked
against the bytes that are there before it is used. Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from flm.devices.device import Array
from flm.errors import BadModelFile, UnsupportedModel
from flm.graph.weights.blocks import Blocks, Matrix, floats
from flm.graph.weights.gguf_types import BLOCK_TYPES, FLOAT_TYPES, OTHER_TYPES

TENSORS_MAX = 65_536
KEYS_MAX = 65_536
STRING_BYTES_MAX = 64 * 2**20
ARRAY_ITEMS_MAX = 2**24
DIMENSIONS_MAX = 4

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # row-major: the reverse of what the file lists
    type: int
    start: int
    bytes: int


class GgufFile:
    """`metadata` by key, `tensors` by name. Raises BadModelFile, naming what is wrong and where."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data: Array = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise BadModelFile(
                f"{path} cannot be read: {error}", fix="check the path and its permissions"
            ) from error
        self._bytes = len(data)
        reader = _Reader(path, data)
        if reader.take(4) != b"GGUF":
            raise BadModelFile(
                f"{path} is not a GGUF file", fix="give a .gguf file or a Hugging Face folder"
            )
        version = reader.scalar("I")
        if version not in (2, 3):
            raise BadModelFile(
                f"{path} is GGUF version {version}; versions 2 and 3 are known",
                fix="convert the model again with a current llama.cpp",
            )
        tensor_count = reader.count("tensor count", TENSORS_MAX)
        key_count = reader.count("metadata count", KEYS_MAX)
        self.metadata: Mapping[str, Any] = {
            reader.string(): reader.value() for _ in range(key_count)
        }
        infos = [reader.tensor_info() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**16:
            raise reader.bad(f"alignment {alignment!r}")
        base = -(-reader.at // alignment) * alignment
        self.tensors = {info[0]: self._place(base, *info) for info in infos}
        if len(self.tensors) != tensor_count:
            raise reader.bad("two tensors share a name")

    def _place(
        self, base: int, name: str, shape: tuple[int, ...], type: int, offset: int
    ) -> TensorInfo:
        size = prod(shape) * _bytes_per_weight(self.path, name, shape, type)
        start = base + offset
        if start + size > self._bytes:
            raise BadModelFile(
                f"{self.path} is truncated: tensor {name} ends at byte {start + size:,.0f}, "
                f"the file has {self._bytes:,}",
                fix="download it again: flm pull --force",
            )
        return TensorInfo(name, shape, type, start, int(size))

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def text(self, key: str) -> str:
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise self._bad_metadata(key, value, "a string")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise self._bad_metadata(key, value, "a number")
        return value

    def _bad_metadata(self, key: str, value: object, due: str) -> BadModelFile:
        return BadModelFile(
            f"{self.path}: metadata {key} is {'missing' if value is None else f'not {due}'}",
            fix="this GGUF was not made by a current converter; get another one",
        )

    def _raw(self, info: TensorInfo) -> Array:
        """[rows, bytes] uint8, mapped: what was read leaves memory with the last view of it."""
        shape = (prod(info.shape[:-1]), info.bytes // prod(info.shape[:-1]))
        return np.memmap(self.path, np.uint8, "r", info.start, shape)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise BadModelFile(
                f"{self.path}: tensor {name} is missing",
                fix="the file is incomplete or of an unknown variant; get another conversion",
            )
        return self.tensors[name]

    def matrix(self, name: str) -> Matrix:
        """Of a tensor of two dimensions, or of three: matrices stacked by rows."""
        info = self._info(name)
        if len(info.shape) not in (2, 3):
            raise BadModelFile(
                f"{self.path}: tensor {name} has shape {info.shape}, a matrix was expected",
                fix="get another conversion of this model",
            )
        shape = (prod(info.shape[:-1]), info.shape[-1])
        if block_type := BLOCK_TYPES.get(info.type):

            def read_blocks(rows: Array) -> Blocks:
                return block_type.blocks(np.asarray(self._raw(info)[rows]))

            return Matrix(
                name, shape, block_type.format, read_blocks, lambda rows: read_blocks(rows).dense()
            )
        float_type = FLOAT_TYPES[info.type]
        return floats(name, shape, lambda rows: float_type.widen(np.asarray(self._raw(info)[rows])))

    def vector(self, name: str) -> Array:
        """A tensor of one dimension (or one row) as float32 [n]."""
        info = self._info(name)
        raw = self._raw(info)
        if block_type := BLOCK_TYPES.get(info.type):
            return block_type.blocks(np.asarray(raw)).dense().reshape(-1)
        return FLOAT_TYPES[info.type].widen(np.asarray(raw)).reshape(-1)


def _bytes_per_weight(path: Path, name: str, shape: tuple[int, ...], type: int) -> float:
    if float_type := FLOAT_TYPES.get(type):
        return float_type.bytes
    if block_type := BLOCK_TYPES.get(type):
        if shape[-1] % block_type.weights:
            raise BadModelFile(
                f"{path}: tensor {name} has rows of {shape[-1]} weights, "
                f"{block_type.name} needs a multiple of {block_type.weights}",
                fix="get another conversion of this model",
            )
        return block_type.bytes / block_type.weights
    known = OTHER_TYPES.get(type, f"type {type}")
    usable = ", ".join(
        [t.name for t in BLOCK_TYPES.values()] + [t.name for t in FLOAT_TYPES.values()]
    )
    raise UnsupportedModel(
        f"{path}: tensor {name} is quantised as {known}, which flm does not read",
        fix=f"take the Q4_K_M or Q8_0 file of this model; types read: {usable}",
    )


class _Reader:
    """Walks the header; every take is checked against the file's end."""

    def __init__(self, path: Path, data: Array) -> None:
        self._path, self._data, self.at = path, data, 0

    def bad(self, what: str) -> BadModelFile:
        return BadModelFile(
            f"{self._path} is damaged: {what} at byte {self.at:,}",
            fix="download it again: flm pull --force",
        )

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self._data) - self.at:
            raise self.bad("it ends early: something reaches past the end of the file")
        piece = self._data[self.at : self.at + size]
        self.at += size
        return piece.tobytes()

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, what: str, most: int) -> int:
        value = int(self.scalar("Q"))
        if value > most:
            raise self.bad(f"{what} is {value:,}, more than {most:,}")
        return value

    def string(self) -> str:
        return self.take(self.count("a string's length", STRING_BYTES_MAX)).decode(
            "utf-8", errors="surrogateescape"
        )

    def value(self) -> Any:
        return self._value(self.scalar("I"))

    def _value(self, type: int) -> Any:
        if type in _SCALARS:
            return self.scalar(_SCALARS[type])
        if type == _STRING:
            return self.string()
        if type != _ARRAY:
            raise self.bad(f"metadata of unknown type {type}")
        item_type = int(self.scalar("I"))
        count = self.count("an array's length", ARRAY_ITEMS_MAX)
        if item_type in _SCALARS:
            dtype = np.dtype("<" + _SCALARS[item_type])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        if item_type != _STRING:
            raise self.bad(f"an array of type {item_type}")
        return [self.string() for _ in range(count)]

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        dimensions = int(self.scalar("I"))
        if not 0 < dimensions <= DIMENSIONS_MAX:
            raise self.bad(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self.count("a dimension", 2**40) for _ in range(dimensions))[::-1]
        if not all(shape) or prod(shape) > 2**48:
            raise self.bad(f"tensor {name} has shape {shape}")
        return name, shape, int(self.scalar("I")), int(self.scalar("Q"))
