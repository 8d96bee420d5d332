"""Drives one compiled graph by hand: what the runner does, with nothing in between."""

import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.tensor import MemoryKind, TensorSpec
from flm.devices.cpu import CpuDevice
from flm.devices.device import Buffer
from flm.devices.selftest import lone_row_alike
from flm.graph.emit import Emitter, WeightStore
from flm.graph.layers import Numerics
from flm.models.family import Source, family_of

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
Floats = npt.NDArray[np.float32]


def unpacked(path: Path, folder: Path) -> Path:
    """The file that `path`.xz holds, written into `folder`."""
    target = folder / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.decompress(path.with_name(path.name + ".xz").read_bytes()))
    return target


class Graph:
    """A compiled model with `lanes` lanes of memory."""

    def __init__(
        self,
        source: Source,
        folder: Path,
        *,
        int8_activations: bool = False,
        row_dtype: str = "float32",
        lanes: int = 1,
        capacity: int = 256,
        context_length: int | None = None,
    ) -> None:
        self.folder = folder
        emitter = Emitter(WeightStore(folder / "weights.bin"))
        name, family = family_of(source)
        numerics = Numerics(int8_activations, row_dtype, context_length)
        self.emitted = family.emit(source, emitter, numerics)
        emitter.save(folder / "graph.onnx", name)
        self.weights_bytes = (folder / "weights.bin").stat().st_size
        self.device = CpuDevice(threads=2)
        self.program = self.device.load(folder / "graph.onnx")
        self.memory = {
            tensor.name: self.device.allocate(tensor.spec(lanes=lanes, capacity=capacity))
            for tensor in self.emitted.layout.tensors
        }

    def _buffer(self, name: str, array: npt.NDArray[np.generic]) -> Buffer:
        buffer = self.device.allocate(TensorSpec(name, array.shape, array.dtype.name))
        buffer.array()[...] = array
        return buffer

    def run(self, ids: npt.ArrayLike, offsets: npt.ArrayLike, first_lane: int = 0) -> Floats:
        """Logits [B, vocabulary] of the last of ids [B, T] in lanes from `first_lane` on."""
        ids = np.atleast_2d(np.asarray(ids, np.int64))
        lanes, tokens = ids.shape
        buffers = {
            "ids": self._buffer("ids", ids),
            "offsets": self._buffer("offsets", np.atleast_1d(np.asarray(offsets, np.int32))),
            "last": self._buffer("last", np.array([tokens - 1])),
            "logits": self._buffer(
                "logits", np.zeros((lanes, 1, self.emitted.vocabulary), np.float32)
            ),
        }
        for tensor in self.emitted.layout.tensors:
            part = self.memory[tensor.name].part(first_lane, first_lane + lanes)
            buffers[tensor.name] = part
            if tensor.kind is MemoryKind.STATE and not np.any(offsets):
                part.array()[...] = 0  # before any token there is nothing to remember
        self.program.run(buffers)
        return buffers["logits"].array()[:, 0]

    def read(self, ids: npt.ArrayLike, chunks: list[int]) -> Floats:
        """Logits [vocabulary] after reading `ids` in lane 0, in these chunks."""
        tokens, at = np.asarray(ids), 0
        for chunk in chunks:
            logits = self.run(tokens[at : at + chunk], at)
            at += chunk
        assert at == len(tokens)
        return logits[0]

    def decode(self, ids: npt.NDArray[np.int64], lengths: list[int], lanes: range) -> Floats:
        """Logits [len(lanes), vocabulary] of one pass in which each of `lanes`, having read the
        first lengths[lane] of `ids`, decodes the token that follows.
        """
        lengths = [lengths[lane] for lane in lanes]
        for lane, length in zip(lanes, lengths, strict=True):
            self.run(ids[:length], 0, first_lane=lane)
        return self.run([[ids[length]] for length in lengths], lengths, lanes.start)


def assert_parity(
    graph: Graph, expected: Mapping[str, npt.NDArray[Any]], kind: str, *, tolerance: float = 2e-4
) -> None:
    """Logits within `tolerance` of `kind`'s in `expected` at its rows, and the same greedy tokens
    after the whole prompt.
    """
    ids = expected["ids"]
    for position, wanted in zip(expected["fixed_rows"], expected[f"{kind}.rows"], strict=True):
        got = graph.read(ids[: position + 1], [position + 1])
        np.testing.assert_allclose(got, wanted, atol=tolerance, rtol=0)
    logits, tokens = graph.read(ids, [len(ids)]), list(ids)
    for wanted in expected[f"{kind}.greedy"]:
        assert logits.argmax() == wanted
        tokens.append(wanted)
        logits = graph.run([wanted], len(tokens) - 1)[0]


def assert_alike_beside_others(
    graph: Graph, ids: npt.NDArray[np.int64], lengths: list[int]
) -> None:
    """A lane's logits are bit-equal beside any others, and alone where a lone row is alike."""
    count = len(lengths)
    together = graph.decode(ids, lengths, range(count))
    for size in range(1 if lone_row_alike() else 2, count):
        for first in range(count - size + 1):
            lanes = range(first, first + size)
            fewer = graph.decode(ids, lengths, lanes)
            np.testing.assert_array_equal(fewer, together[first : first + size], err_msg=f"{lanes}")
    # Alone is always like alone, wherever: the first lane's prompt in the last lane's place.
    swapped = [*lengths[1:], lengths[0]]
    alone = graph.decode(ids, lengths, range(1))
    elsewhere = graph.decode(ids, swapped, range(count - 1, count))
    np.testing.assert_array_equal(alone, elsewhere)


def condensed(logits: Floats, tokens: npt.NDArray[np.integer[Any]]) -> Floats:
    """[len(tokens) + 1]: the logits of `tokens`, then one that weighs as much as all others."""
    others = np.delete(logits.astype(np.float64), tokens)
    most = others.max()
    rest = most + np.log(np.exp(others - most).sum())
    return np.append(logits[tokens], np.float32(rest))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def kl(wanted: np.ndarray, got: np.ndarray) -> float:
    """Kullback-Leibler divergence of two rows of logits, in nats."""
    p, q = log_softmax(wanted), log_softmax(got)
    return float((np.exp(p) * (p - q)).sum())
