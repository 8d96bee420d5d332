"""How much of the disk a model's weights take once compiled, at the most: from their types.

Tables of rotary angles come on top, half a GiB where a context is longest.
"""

from collections.abc import Sequence
from math import prod

from flm.graph.emit import ALIGNMENT
from flm.graph.weights.blocks import BlockFormat
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.gguf_types import BLOCK_TYPES
from flm.graph.weights.q4nx import BLOCK, COLUMNS, ROWS, TILE_BYTES
from flm.graph.weights.safetensors import BYTES, MXFP4, TILES, SafetensorsFolder
from flm.models.family import Source

FLOAT_BYTES = 4
PARTS = 3  # codes, scales and minimums: each begins on a page
ROUNDED = BlockFormat(8, 32, minimum=False)  # the dearest that a folder's floats are rounded to


def bytes_at_most(source: Source) -> int:
    taken = _of_gguf(source) if isinstance(source, GgufFile) else _of_folder(source)
    return round(taken) + len(source.tensors) * PARTS * ALIGNMENT


def _of_gguf(file: GgufFile) -> float:
    formats = {name: BLOCK_TYPES.get(info.type) for name, info in file.tensors.items()}
    stacked = [name for name, info in file.tensors.items() if len(info.shape) == 3]
    experts = _experts([block.format for name in stacked if (block := formats[name])])
    taken = 0.0
    for name, info in file.tensors.items():
        block = formats[name]
        each = block.format.weight_bytes if block else FLOAT_BYTES
        if block and name in stacked:
            each = experts
        if "embd" in name:  # its rows are gathered, and it may be the head as well
            each += block.format.minimum * 4 / block.format.block if block else FLOAT_BYTES
        taken += prod(info.shape) * each
    return taken


def _experts(formats: Sequence[BlockFormat]) -> float:
    """Those of a layer are held alike: exactly, if none has minimums."""
    if not formats:
        return 0.0
    exact = not any(format.minimum for format in formats)
    bits = max(format.bits for format in formats) if exact else 8
    return BlockFormat(bits, min(format.block for format in formats), minimum=False).weight_bytes


def _of_folder(folder: SafetensorsFolder) -> float:
    taken = 0.0
    for name, tensor in folder.tensors.items():
        if tensor.type is BYTES:  # two of MXFP4's codes
            each = 2 * MXFP4.weight_bytes
        elif tensor.type is TILES:
            each = ROWS * COLUMNS / TILE_BYTES * BlockFormat(4, BLOCK, minimum=True).weight_bytes
        elif len(tensor.shape) > 1 and tensor.shape[-1] % ROUNDED.block == 0 and folder.quantized:
            each = ROUNDED.weight_bytes
        else:
            each = FLOAT_BYTES * (2 if "embed" in name else 1)
        taken += prod(tensor.shape) * each
    return taken
