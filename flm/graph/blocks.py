"""What model graphs are made of: the frame, embeddings, linear layers, norms, attention, the MLP.

A block stores its weights once and emits calls of the functions in domain `flm`. Shapes: B lanes,
T tokens of this pass, C rows of capacity.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from flm.core.tensor import MemoryKind
from flm.devices.device import (
    IDS,
    LAST,
    LOGITS,
    OFFSETS,
    OUT,
    PICTURES,
    PLACES,
    POSITIONS,
    VIEWS,
    Array,
)
from flm.graph import functions, sight, views
from flm.graph.emit import Emitter
from flm.graph.layers import Layers, Numerics
from flm.graph.matrices import store_rows
from flm.graph.weights.blocks import Matrix
from flm.memory.layout import MemoryTensor

NO_SINK = -6e4  # takes no share of any row, and keeps attention from adding up tile by tile


@dataclass(frozen=True, slots=True)
class Rotary:
    """Names of the cosine and sine tables, [positions, width / 2] each; with `turns` [B,T], they
    are of this pass's tokens only, and it says which row is whose.
    """

    cos: str
    sin: str
    turns: str | None = None
    width: int = 0


@dataclass(frozen=True, slots=True)
class Heads:
    count: int
    kv_count: int
    width: int
    scale: float
    window: int | None = None  # tokens each token attends to, itself among them; None: all
    sinks: tuple[str, Array] | None = None  # (name, [count]): scores that take a share of nothing


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Names of what one token a lane attends to: keys and values [B,kv_heads,R,width], how many of
    them count, less one, [B], the most [1], and where the token stands [B,1].
    """

    key: str
    value: str
    lengths: str
    total: str
    positions: str


class Blocks(Layers):
    """Emits into one graph; `memory` lists what the model carries from token to token, `notes` what
    whoever compiles it should know.
    """

    def __init__(self, emitter: Emitter, numerics: Numerics, *, epsilon: float) -> None:
        super().__init__(emitter, numerics)
        self.memory: list[MemoryTensor] = []
        self.notes: set[str] = set()
        self._epsilon = epsilon
        self.ids = emitter.input(IDS, "int64", ["B", "T"])
        self._views: str | None = None
        self._last = emitter.input(LAST, "int64", [1])
        self._offsets = offsets = emitter.input(OFFSETS, "int32", ["B"])
        with emitter.scope("frame"):
            (tokens,) = emitter.op("Shape", [self.ids], start=1, end=2)
            (count,) = emitter.op("Cast", [tokens], to=6)
            (totals,) = emitter.op("Add", [offsets, count])
            # What GroupQueryAttention asks for: each lane's rows less one, and the longest.
            (self._lengths,) = emitter.op("Sub", [totals, emitter.constant([1], "int32")])
            (self._total,) = emitter.op("ReduceMax", [totals], keepdims=1)

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        with self.e.scope(f"layers.{index}"):
            yield

    def last(self, x: str) -> str:
        """[B,T,K] to [B,1,K]: from here on only the wanted row is computed."""
        return self.e.op("Gather", [x, self._last], axis=1)[0]

    def scaled(self, x: str, factor: float) -> str:
        if factor == 1:
            return x
        stored = self.vector(f"factor.{factor!r}", np.array([factor], np.float32))
        return self.e.op("Mul", [x, stored])[0]

    def views_attend_both_ways(self) -> None:
        """From here on attention takes the tokens of each view of this pass together."""
        self._views = self.e.input(VIEWS, "int64", ["K", 2])

    def embedding(self, matrix: Matrix, scale: float = 1.0, *, deep: int = 0) -> str:
        """ids [B,T] to [B,T,K], times `scale`; a head tied to it shares its bytes. Where a graph
        sees, tokens that have a place among the rows of pictures are those, as they are; `deep`
        parts behind the first, of K each, are for layers (`deepened`).
        """
        x = self.scaled(self._embedded(matrix), scale)
        if not self.sees:
            return x
        rows = self.e.input(PICTURES, "float32", ["P", matrix.shape[1] * (1 + deep)])
        self._places = self.e.input(PLACES, "int64", ["B", "T"])
        rows, *self._deep = self.split(rows, 1 + deep) if deep else (rows,)
        return self.e.call(sight.placed(), [x, rows, self._places])[0]

    def deepened(self, x: str, layer: int) -> str:
        """What `layer` gives, [B,T,K]; for tokens of a picture, and that layer's part of their
        rows.
        """
        if not self.sees:
            return x
        return self.e.call(sight.deepened(), [x, self._deep[layer], self._places])[0]

    def _embedded(self, matrix: Matrix) -> str:
        weight = store_rows(self.e.store, matrix)
        inputs = [self.ids, self.e.weight(weight.codes)]
        if weight.format is None:
            return self.e.call(functions.embedding(), inputs)[0]
        assert weight.scales
        inputs.append(self.e.weight(weight.scales))
        attributes: dict[str, Any] = {
            "bits": weight.format.bits,
            "block_size": weight.format.block,
        }
        if weight.minimum is None:
            return self.e.call(functions.qembedding(), inputs, **attributes)[0]
        inputs.append(self.e.weight(weight.minimum))
        attributes["by_block"] = [0, 0, -1, weight.format.block]
        attributes["flat"] = [0, 0, weight.columns]
        return self.e.call(functions.qembedding_min(), inputs, **attributes)[0]

    def head(self, x: str, matrix: Matrix, *, cap: float | None = None) -> None:
        """The logits: [B,1,vocabulary]; with a cap, cap * tanh of what the product gives."""
        if cap is None:
            self.linear(x, matrix, output=LOGITS)
        else:
            (bent,) = self.e.op("Tanh", [self.linear(x, matrix)])
            factor = self.vector(f"factor.{cap!r}", np.array([cap], np.float32))
            self.e.op("Mul", [bent, factor], [LOGITS])
        self.e.output(LOGITS, "float32", ["B", 1, matrix.shape[0]])

    def rms_norm(self, x: str, name: str, weight: Array) -> str:
        stored = self.e.weight(self.e.store.put(name, weight))
        return self.e.call(functions.rms_norm(), [x, stored], epsilon=self._epsilon)[0]

    def add_rms_norm(self, x: str, residual: str, name: str, weight: Array) -> tuple[str, str]:
        """(norm of the sum, the sum)."""
        stored = self.e.weight(self.e.store.put(name, weight))
        inputs = [x, residual, stored]
        y, total = self.e.call(functions.add_rms_norm(), inputs, 2, epsilon=self._epsilon)
        return y, total

    def rotary(
        self, frequencies: Array, positions: int, *, magnitude: float = 1.0, name: str = "rotary"
    ) -> Rotary:
        """Tables for `positions` positions of `frequencies` [width / 2], in radians a position."""
        angles = np.outer(np.arange(positions), frequencies.astype(np.float64))
        dtype = self._numerics.row_dtype
        tables = {"cos": magnitude * np.cos(angles), "sin": magnitude * np.sin(angles)}
        cos, sin = (
            self.e.weight(self.e.store.put(f"{name}.{part}.{dtype}", table.astype(dtype)))
            for part, table in tables.items()
        )
        return Rotary(cos, sin)

    def rotary_seen(
        self, r: Rotary, sections: Sequence[int], width: int, *, interleaved: bool = True
    ) -> Rotary:
        """The same where a token has three positions (MRoPE): as many of its pairs of values as
        `sections` say turn by when it comes, by its row and by its column in a picture, by turns
        (and the last by when it comes) or, if not interleaved, one section after the other. Alike
        for tokens of a text, whose three positions are one.
        """
        which = np.zeros(width // 2, np.int64)
        if interleaved:
            for axis in (1, 2):
                which[axis : 3 * sections[axis] : 3] = axis
        else:
            which[:] = np.repeat(np.arange(3), sections)
        chosen = np.eye(3, dtype=np.float32)[which].T.reshape(1, 3, 1, -1)
        mask = self.vector("rotary.axes", np.ascontiguousarray(chosen))
        positions = self.e.input(POSITIONS, "int64", ["B", 3, "T"])
        element = {"float32": 1, "float16": 10}[self._numerics.row_dtype]
        with self.e.scope("seen"):
            (count,) = self.e.op("Size", [self.ids])
            (shape,) = self.e.op("Shape", [self.ids])
            (order,) = self.e.op("Range", [self.e.constant(0), count, self.e.constant(1)])
            (turns,) = self.e.op("Reshape", [order, shape])
            cos, sin = (
                self.e.call(
                    sight.rotary_seen(),
                    [table, positions, mask],
                    flat=[-1, width // 2],
                    row_type=element,
                )[0]
                for table in (r.cos, r.sin)
            )
        return Rotary(cos, sin, turns, width)

    def rows(self, name: str, heads: Heads) -> str:
        """A rows tensor of memory: read here, and written over itself by attention."""
        shape = (heads.kv_count, heads.width)
        self.memory.append(MemoryTensor(name, MemoryKind.ROWS, shape, self._numerics.row_dtype))
        on_device: list[str | int] = ["B", heads.kv_count, "C", heads.width]
        self.e.output(name + OUT, self._numerics.row_dtype, on_device)
        return self.e.input(name, self._numerics.row_dtype, on_device)

    def attention(
        self,
        x: str,
        index: int,
        parts: tuple[Matrix, ...],
        h: Heads,
        r: Rotary | None,
        norms: tuple[tuple[str, Array], tuple[str, Array]] | None = None,
    ) -> str:
        """Query, key and value of x [B,T,K], attended: [B,T,heads*width]. `norms`
        (name, weight [width]) are of each head's query and key; without `r` nothing tells
        positions apart but what may be seen.
        """
        if norms:
            q, k, v = self.linears(x, *parts)
            q, k = self.head_norm(q, h.count, *norms[0]), self.head_norm(k, h.kv_count, *norms[1])
            return self.attend([q, k, v], index, h, r)
        if r and r.turns:  # queries and keys are turned before attention, each by itself
            return self.attend(self.linears(x, *parts), index, h, r)
        packed = len({matrix.format for matrix in parts}) == 1
        qkv = [self.linear(x, *parts)] if packed else [self.linear(x, part) for part in parts]
        return self.attend(qkv, index, h, r)

    def attend(self, qkv: Sequence[str], index: int, h: Heads, r: Rotary | None) -> str:
        """Query, key and value (or all in one), [B,T,...] each: [B,T,heads*width]."""
        key, value = (self.rows(f"layers.{index}.{name}", h) for name in ("key", "value"))
        dtype = self._numerics.row_dtype
        name, scores = h.sinks or (f"no_sinks.{h.count}", np.full(h.count, NO_SINK))
        sinks = self.vector(f"{name}.{dtype}", scores.astype(dtype))
        attributes: dict[str, Any] = {
            "num_heads": h.count,
            "kv_num_heads": h.kv_count,
            "scale": h.scale,
            "window": -1 if h.window is None else h.window,
            "row_type": {"float32": 1, "float16": 10}[dtype],
        }
        inputs, outputs = [*qkv, key, value, self._lengths, self._total], [key + OUT, value + OUT]
        if r and r.turns:
            assert len(qkv) == 3
            function, attributes["rotary_width"] = sight.turned_attention(), r.width
            inputs += [r.cos, r.sin, sinks, r.turns]
        elif self._views:
            assert r
            assert len(qkv) == 3
            function = views.viewed_attention(windowed=h.window is not None)
            attributes |= {"rotary": 1, "no_rows": [0, h.kv_count * h.width]}
            inputs += [r.cos, r.sin, sinks, self._offsets, self._views]
        else:
            function, attributes["rotary"] = functions.attention(packed=len(qkv) == 1), int(bool(r))
            inputs += [*([r.cos, r.sin] if r else ["", ""]), sinks]
        return self.e.call(function, inputs, [self.e.path("attended"), *outputs], **attributes)[0]

    def shared_rows(self, layer: int, h: Heads) -> SharedRows:
        """What `layer` has stored up to the wanted token, for others to attend to: within a window,
        no more than that is looked at, however many rows there are.
        """
        key, value = (f"layers.{layer}.{name}{OUT}" for name in ("key", "value"))
        (last,) = self.e.op("Cast", [self._last], to=6)
        (positions,) = self.e.op("Add", [self._offsets, last])
        lengths = positions
        if h.window is not None:
            rows, lengths = self._within(h.window, key, positions, h.kv_count)
            key, value = (self.e.op("GatherND", [x, rows], batch_dims=2)[0] for x in (key, value))
        (longest,) = self.e.op("ReduceMax", [lengths], keepdims=1)
        (total,) = self.e.op("Add", [longest, self.e.constant([1], "int32")])
        (positions,) = self.e.op("Cast", [positions], to=7)
        (positions,) = self.e.op("Unsqueeze", [positions, self.e.constant([1])])
        return SharedRows(key, value, lengths, total, positions)

    def _within(self, window: int, key: str, positions: str, kv_heads: int) -> tuple[str, str]:
        """(numbers [B,kv_heads,window,1] of the rows that tokens at `positions` [B] see, how many
        of them count, less one, [B]).
        """
        (first,) = self.e.op("Sub", [positions, self.e.constant(window - 1, "int32")])
        (first,) = self.e.op("Max", [first, self.e.constant(0, "int32")])
        (lengths,) = self.e.op("Sub", [positions, first])
        (capacity,) = self.e.op("Shape", [key], start=2, end=3)
        (end,) = self.e.op("Sub", [capacity, self.e.constant([1])])
        steps = np.broadcast_to(np.arange(window)[:, None], (1, kv_heads, window, 1))
        (first,) = self.e.op("Cast", [first], to=7)
        (first,) = self.e.op("Unsqueeze", [first, self.e.constant([1, 2, 3])])
        (rows,) = self.e.op("Add", [first, self.vector(f"steps.{kv_heads}.{window}", steps)])
        # Beyond the lane's room no row counts, whichever stands there.
        return self.e.op("Min", [rows, end])[0], lengths

    def attend_shared(self, query: str, rows: SharedRows, h: Heads, r: Rotary) -> str:
        """query [B,1,heads*width] of the wanted token, attended: [B,1,heads*width]."""
        inputs = [query, rows.key, rows.value, rows.lengths, rows.total, r.cos, r.sin]
        return self.e.call(
            functions.shared_attention(),
            [*inputs, rows.positions],
            num_heads=h.count,
            kv_num_heads=h.kv_count,
            scale=h.scale,
            row_type={"float32": 1, "float16": 10}[self._numerics.row_dtype],
            no_rows=[0, h.kv_count * h.width],
        )[0]

    def state(self, name: str, shape: tuple[int, ...]) -> str:
        """A state tensor of memory, written over itself by whoever reads it here."""
        self.memory.append(MemoryTensor(name, MemoryKind.STATE, shape))
        self.e.output(name + OUT, "float32", ["B", *shape])
        return self.e.input(name, "float32", ["B", *shape])

    def causal_conv(self, x: str, tail: str, name: str, weight: Array, *, silu: bool = True) -> str:
        """x [B,T,C] over time with weight [C,k]; `tail` is the k-1 inputs before."""
        stored = self.e.weight(self.e.store.put(name, weight[:, None]))
        outputs = [self.e.path("convolved"), tail + OUT]
        inputs = [x, stored, tail]
        return self.e.call(functions.causal_conv(silu=silu), inputs, outputs)[0]

    def head_norm(
        self, x: str, heads: int, name: str, weight: Array, *, epsilon: float | None = None
    ) -> str:
        """Each head of x [B,T,heads*width] by its own rms, times weight [width]."""
        stored = self.e.weight(self.e.store.put(name, weight))
        return self.e.call(
            functions.head_norm(),
            [x, stored],
            epsilon=self._epsilon if epsilon is None else epsilon,
            by_head=[0, 0, heads, len(weight)],
            flat=[0, 0, heads * len(weight)],
        )[0]

    def gated_delta(
        self, inputs: Sequence[str], state: str, key_heads: int, value_heads: int, width: int
    ) -> str:
        """`inputs`: query, key, value, a, b, decay bias, decay rate (functions.gated_delta)."""
        return self.e.call(
            functions.gated_delta(),
            [*inputs, state],
            [self.e.path("recalled"), state + OUT],
            key_heads=key_heads,
            value_heads=value_heads,
            scale=width**-0.5,
        )[0]

    def gated_rms_norm(self, x: str, gate: str, heads: int, name: str, weight: Array) -> str:
        """Each head of x [B,T,heads*width] by its own rms, times weight [width] and silu(gate)."""
        stored = self.e.weight(self.e.store.put(name, weight))
        return self.e.call(
            functions.gated_rms_norm(),
            [x, stored, gate],
            epsilon=self._epsilon,
            by_head=[0, 0, heads, len(weight)],
            flat=[0, 0, heads * len(weight)],
        )[0]

    def gate(self, x: str, gate: str) -> str:
        return self.e.call(functions.gate(), [x, gate])[0]

    def swiglu(self, gate: str, up: str) -> str:
        return self.e.call(functions.swiglu(), [gate, up])[0]

    def geglu(self, gate: str, up: str) -> str:
        return self.e.call(functions.geglu(), [gate, up])[0]
