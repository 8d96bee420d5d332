"""Reads a Hugging Face folder: config.json and safetensors, mapped. Floats, and MXFP4.

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
from flm.graph.weights.blocks import BlockFormat, Blocks, Matrix, floats
from flm.graph.weights.gguf_types import FLOAT_TYPES, FloatType, mxfp4

HEADER_BYTES_MAX = 128 * 2**20
SMALL_BYTES = 2**30  # of weights, up to which a model is rounded to 8 bits: 4 would cost it dearly
MXFP4 = BlockFormat(bits=8, block=32, minimum=False)
QUANTIZED = {"gpt_oss": "mxfp4"}  # model_type -> the quant_method of it that is read
FLOATS = "take the bf16 weights, or a GGUF of this model"


@dataclass(frozen=True, slots=True)
class CodeType:
    """Bytes that are weights only beside their scales."""

    name: str
    bytes: int = 1


TILES = CodeType("I8")  # FastFlowLM's
BYTES = CodeType("U8")  # MXFP4's codes and exponents
COUNTS = CodeType("I64", 8)  # 0, 1, 2 …, which old folders keep and no graph takes
_FLOATS = {"F32": FLOAT_TYPES[0], "F16": FLOAT_TYPES[1], "BF16": FLOAT_TYPES[30]}
_TYPES: dict[str, FloatType | CodeType] = {**_FLOATS, "I8": TILES, "U8": BYTES, "I64": COUNTS}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    shape: tuple[int, ...]
    type: FloatType | CodeType
    file: Path
    start: int

    def raw(self) -> Array:
        """[rows, bytes] uint8, mapped: what was read leaves memory with the last view of it."""
        rows = prod(self.shape[:-1])
        shape = (rows, prod(self.shape) // rows * self.type.bytes)
        return np.memmap(self.file, np.uint8, "r", self.start, shape)


class SafetensorsFolder:
    """`config` is config.json. Whoever builds from it rounds its matrices, unless `quantized` is
    False.
    """

    def __init__(self, path: Path, *, quantized: bool = True, files: str = "*.safetensors") -> None:
        self.path = path
        self.config = read_json_object(path / "config.json")
        self.quantized = quantized
        self._refuse_quantized()
        found = sorted(path.glob(files))
        if not found:
            raise BadModelFile(
                f"{path} holds no .safetensors file",
                fix="give a complete Hugging Face model folder, or a .gguf file",
            )
        self.tensors: dict[str, StoredTensor] = {}
        for file in found:
            self.tensors |= _read(file)

    @property
    def bits(self) -> int:
        """What matrices are rounded to, where no more is asked for."""
        size = sum(prod(tensor.shape) * tensor.type.bytes for tensor in self.tensors.values())
        return 8 if size <= SMALL_BYTES else 4

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def stored(self, name: str) -> StoredTensor:
        if name not in self.tensors:
            raise BadModelFile(
                f"{self.path}: tensor {name} is missing",
                fix="the folder is incomplete or of an unknown variant; download it again",
            )
        return self.tensors[name]

    def _refuse_quantized(self) -> None:
        kind, said = self.config.get("model_type"), self.config.get("quantization_config")
        method = said.get("quant_method") if isinstance(said, dict) else said
        if said and (method is None or method != QUANTIZED.get(str(kind))):
            raise UnsupportedModel(
                f"{self.path} holds weights quantised by {method!r}, which flm does not read "
                f"for {kind!r}",
                fix=FLOATS,
            )

    def _floats(self, name: str) -> tuple[StoredTensor, FloatType]:
        """A tensor that means what it says: codes taken for weights would give nonsense."""
        stored = self.stored(name)
        if isinstance(stored.type, CodeType):
            raise UnsupportedModel(
                f"{self.path}: tensor {name} is stored as {stored.type.name}: codes, whose scales "
                "flm does not know",
                fix=FLOATS,
            )
        return stored, stored.type

    def matrix(self, name: str) -> Matrix:
        """Of a tensor of two dimensions, or of three: matrices stacked by rows; or of the two that
        MXFP4 takes, NAME_blocks and NAME_scales.
        """
        if f"{name}_blocks" in self:
            return self._mxfp4(name)
        stored, type = self._floats(name)
        if len(stored.shape) not in (2, 3):
            raise BadModelFile(
                f"{self.path}: tensor {name} has shape {stored.shape}, a matrix was expected"
            )
        rows, columns = prod(stored.shape[:-1]), stored.shape[-1]

        def read(rows: Array) -> Array:
            return type.widen(np.asarray(stored.raw()[rows]))

        return floats(name, (rows, columns), read)

    def _mxfp4(self, name: str) -> Matrix:
        stored, exponents = self.stored(f"{name}_blocks"), self.stored(f"{name}_scales")
        fits = exponents.type is stored.type is BYTES and len(stored.shape) > 2
        if not fits or stored.shape != (*exponents.shape, MXFP4.block // 2):
            raise BadModelFile(f"{self.path}: tensors of {name} are not MXFP4's")
        rows, count = prod(exponents.shape[:-1]), exponents.shape[-1]

        def read_blocks(wanted: Array) -> Blocks:
            pairs = np.asarray(stored.raw().reshape(rows, count, -1)[wanted])
            nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(wanted), count, -1)
            codes, scales = mxfp4(nibbles, np.asarray(exponents.raw()[wanted]))
            return Blocks(MXFP4, codes, scales, None)

        return Matrix(
            name,
            (rows, count * MXFP4.block),
            MXFP4,
            read_blocks,
            lambda wanted: read_blocks(wanted).dense(),
        )

    def vector(self, name: str) -> Array:
        stored, type = self._floats(name)
        return type.widen(np.asarray(stored.raw())).reshape(-1)


def _read(path: Path) -> dict[str, StoredTensor]:
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
        return {name: _place(path, 8 + length, len(data), name, e) for name, e in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged from error


def _place(path: Path, base: int, size: int, name: str, entry: dict[str, Any]) -> StoredTensor:
    if entry["dtype"] not in _TYPES:
        raise UnsupportedModel(
            f"{path}: tensor {name} is stored as {entry['dtype']}; {', '.join(_FLOATS)} are read",
            fix=FLOATS,
        )
    type, shape = _TYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"])
    start, end = (int(offset) for offset in entry["data_offsets"])
    fits = min(shape, default=1) > 0 and end - start == prod(shape) * type.bytes
    if not (fits and 0 <= start < end <= size - base):
        raise ValueError(name)
    return StoredTensor(shape, type, path, base + start)
