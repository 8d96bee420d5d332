"""Shapes and honest content without arithmetic: a device for testing all that surrounds a model.

A model is a JSON file (`write_model`). A pass costs little for any shape, and a test can check
what memory holds instead of counting calls:
  * the row of a token holds `fingerprint`s of it, its position, tensor and head, in the first and
    the last column;
  * a state tensor holds, in its first and last element, hashes of all tokens since it was zero;
  * logits are drawn by what the rows up to the token and the state hold, so that memory which
    lacks a row, or has another's, gives other logits;
  * of a model that sees, a picture's token is what its row is.
Host and device copies are kept apart, as an NPU keeps them: a forgotten sync is a wrong result.
"""

import json
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from flm.core.tensor import MemoryKind, TensorSpec
from flm.devices.device import (
    IDS,
    LAST,
    LOGITS,
    OFFSETS,
    OUT,
    PICTURES,
    PLACES,
    Array,
    Buffer,
    zeros,
)
from flm.errors import PassCancelled

PRIME = 2039  # every value held is below 2048, so float16 holds it too
Memory = tuple[str, MemoryKind, tuple[int, ...], str]  # name, kind, shape of one lane, dtype


def nothing() -> None:
    """What hooks do unless told otherwise."""


class NullBuffer:
    def __init__(
        self, spec: TensorSpec, host: Array, device: Array, syncing: Callable[[], None] = nothing
    ) -> None:
        self.spec = spec
        self.device = device  # what programs see
        self._host = host
        self._syncing = syncing
        self._parts: dict[tuple[int, int], NullBuffer] = {}

    def array(self) -> Array:
        return self._host

    def part(self, start: int, stop: int) -> "NullBuffer":
        assert 0 <= start < stop <= self.spec.shape[0], f"[{start}, {stop}) of {self.spec}"
        if (start, stop) not in self._parts:
            shape = (stop - start, *self.spec.shape[1:])
            spec = TensorSpec(self.spec.name, shape, self.spec.dtype)
            views = self._host[start:stop], self.device[start:stop]
            self._parts[start, stop] = NullBuffer(spec, *views, self._syncing)
        return self._parts[start, stop]

    def to_device(self, rows: range | None = None) -> None:
        self._syncing()
        _copy(self._host, self.device, rows)

    def to_host(self, rows: range | None = None) -> None:
        self._syncing()
        _copy(self.device, self._host, rows)


class NullProgram:
    grid = 1

    def __init__(
        self, memory: list[Memory], vocabulary: int, during: Callable[[], None], sees: int = 0
    ) -> None:
        # A size of 0 is one the buffers decide: lanes, tokens, capacity.
        inputs = [TensorSpec(IDS, (0, 0), "int64"), TensorSpec(OFFSETS, (0,), "int32")]
        inputs.append(TensorSpec(LAST, (1,), "int64"))
        if sees:
            inputs += [TensorSpec(PICTURES, (0, sees)), TensorSpec(PLACES, (0, 0), "int64")]
        outputs = [TensorSpec(LOGITS, (0, 1, vocabulary))]
        for name, kind, shape, dtype in memory:
            whole = (0, shape[0], 0, shape[1]) if kind is MemoryKind.ROWS else (0, *shape)
            inputs.append(TensorSpec(name, whole, dtype))
            outputs.append(TensorSpec(name + OUT, whole, dtype))
        self.inputs: Mapping[str, TensorSpec] = {spec.name: spec for spec in inputs}
        self.outputs: Mapping[str, TensorSpec] = {spec.name: spec for spec in outputs}
        self._rows = [name for name, kind, *_ in memory if kind is MemoryKind.ROWS]
        self._state = [name for name, kind, *_ in memory if kind is MemoryKind.STATE]
        self._vocabulary = vocabulary
        self._during = during
        self._cancelled = False
        # Twice the same: the logits of a seed are a window of it, peaked as a real model's are.
        peaks = np.random.default_rng(0).normal(scale=3.0, size=vocabulary).astype(np.float32)
        self._logits = np.concatenate([peaks, peaks])

    def run(self, buffers: Mapping[str, Buffer]) -> None:
        self._cancelled = False
        missing = self.inputs.keys() ^ (buffers.keys() - {LOGITS})
        assert not missing, f"buffers do not fit the program: {sorted(missing)}"
        device = {name: _device_copy(buffer) for name, buffer in buffers.items()}
        ids, offsets, last = device[IDS], device[OFFSETS], int(device[LAST][0])
        assert 0 <= ids.min() <= ids.max() < self._vocabulary, "a token outside the vocabulary"
        assert len(ids) == len(offsets) == len(device[LOGITS]), "lanes differ"
        if PICTURES in device:
            ids = _seen(ids, device[PICTURES], device[PLACES])
        half = ids.shape[1] // 2
        for lane, tokens in enumerate(ids):
            start = int(offsets[lane])
            for index, name in enumerate(self._rows):
                _write_rows(device[name][lane], tokens, start, index)
            for name in self._state:
                _fold_tokens(device[name][lane], tokens[:half])
        self._during()
        if self._cancelled:
            raise PassCancelled("the pass was cancelled", fix="send the request again")
        for lane, tokens in enumerate(ids):
            for name in self._state:
                _fold_tokens(device[name][lane], tokens[half:])
            seed = self._read(device, lane, int(offsets[lane]) + last + 1) % self._vocabulary
            device[LOGITS][lane, 0] = self._logits[seed : seed + self._vocabulary]

    def cancel(self) -> None:
        self._cancelled = True

    def _read(self, device: Mapping[str, Array], lane: int, end: int) -> int:
        """A hash of the lane's memory: state, and of each rows tensor every n-th row in turn."""
        stride = len(self._rows)
        mixed = 0
        for index, name in enumerate(self._rows):
            rows = device[name][lane, :, index:end:stride]  # [heads, ~end / stride, width]
            sums = rows[..., 0].sum(axis=0, dtype=np.int64) + rows[..., -1].sum(
                axis=0, dtype=np.int64
            )
            mixed = _mix(mixed, int(sums @ np.arange(1, len(sums) + 1)))
        for name in self._state:
            flat = device[name][lane].reshape(-1)
            mixed = _mix(_mix(mixed, int(flat[0])), int(flat[-1]))
        return mixed


class NullDevice:
    """`during` is called in the middle of every pass, with memory half-way between before and
    after, `syncing` before every sync: tests fail the device there, hold it, or move a clock.
    """

    name = "null"

    def __init__(
        self, during: Callable[[], None] = nothing, syncing: Callable[[], None] = nothing
    ) -> None:
        self._during = during
        self._syncing = syncing
        self._held: list[weakref.ref[Array]] = []

    def allocate(self, spec: TensorSpec) -> NullBuffer:
        device = zeros(spec)
        self._held.append(weakref.ref(device, self._held.remove))
        return NullBuffer(spec, zeros(spec), device, self._syncing)

    def lose(self) -> None:
        """All it holds is junk from here on, as what a device holds that was opened anew."""
        for reference in self._held:
            if (array := reference()) is not None:
                array[...] = 99

    def load(self, graph: Path) -> NullProgram:
        model = json.loads(graph.read_text())
        memory = [
            (name, MemoryKind(kind), tuple(shape), dtype)
            for name, kind, shape, dtype in model["memory"]
        ]
        return NullProgram(memory, model["vocabulary"], self._during, model["sees"])

    def close(self) -> None:
        """Nothing is held outside Python."""


def write_model(path: Path, memory: Iterable[Memory], *, vocabulary: int, sees: int = 0) -> Path:
    """A model that `NullDevice.load` reads. Shapes are a lane's: (heads, width) for rows. `sees`:
    how wide the rows of pictures are that it takes; 0: none.
    """
    listed = [(name, kind.value, shape, dtype) for name, kind, shape, dtype in memory]
    path.write_text(json.dumps({"vocabulary": vocabulary, "memory": listed, "sees": sees}))
    return path


def fingerprint(tokens: Array, start: int, *, tensor: int, heads: int) -> Array:
    """[heads, len(tokens)]: what rows tensor number `tensor` holds of `tokens` at `start`."""
    positions = np.arange(start, start + len(tokens))
    rows = 31 * tokens.astype(np.int64) + 17 * positions + 7 * tensor  # [T]
    return (rows[None, :] + 5 * np.arange(heads)[:, None]) % PRIME + 1


def _seen(ids: Array, pictures: Array, places: Array) -> Array:
    """Tokens, those that are of a picture by what its rows hold."""
    rows = np.array([zlib.crc32(row.tobytes()) % PRIME for row in pictures])
    found: Array = np.where(places > 0, rows[places], ids)
    return found


def _write_rows(memory: Array, tokens: Array, start: int, tensor: int) -> None:
    heads, capacity, _ = memory.shape
    end = start + len(tokens)
    assert end <= capacity, f"rows [{start}, {end}) of {capacity}"
    content = fingerprint(tokens, start, tensor=tensor, heads=heads)
    memory[:, start:end, 0] = memory[:, start:end, -1] = content


def _fold_tokens(state: Array, tokens: Array) -> None:
    flat = state.reshape(-1)  # a view: a lane's state is contiguous
    for element, base in ((0, 31), (-1, 37)):
        chain = int(flat[element])
        for token in tokens.tolist():
            chain = (chain * base + token + 1) % PRIME
        flat[element] = chain


def _mix(seed: int, value: int) -> int:
    return (seed * 1_000_003 + value) % (2**61 - 1)


def _device_copy(buffer: Buffer) -> Array:
    assert isinstance(buffer, NullBuffer), f"a buffer of another device: {type(buffer).__name__}"
    return buffer.device


def _copy(source: Array, target: Array, rows: range | None) -> None:
    if rows is None:
        np.copyto(target, source)
    else:  # [lanes, heads, capacity, width]
        target[:, :, rows.start : rows.stop] = source[:, :, rows.start : rows.stop]
