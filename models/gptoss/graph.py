"""GPT-OSS: windows in every other layer, sinks in all of them, biases, YaRN, and for an MLP a
mixture of experts whose activation is clamped.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from flm.graph.blocks import Blocks, Heads
from flm.graph.emit import Emitter
from flm.graph.experts import Experts, experts
from flm.graph.layers import Numerics
from flm.graph.weights.blocks import Matrix
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import emit_decoder, sizes_of
from flm.models.family import Emitted, Source
from flm.models.gptoss import names
from flm.models.mixture import Mixture, mixture_of
from flm.models.rope import rope_of
from flm.models.shape import Shape, contradiction, shape_of
from flm.models.weights import Weights

# Of YaRN's ramp, whether its ends are whole pairs. No GGUF says; the models as published say no.
TRUNCATE = False
ALPHA, SHIFT, LIMIT = 1.702, 1.0, 7.0  # of the activation


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape, mixture = shape_of(source, is_mixture=True), mixture_of(source)
    shape = replace(shape, rope_scaling={"truncate": TRUNCATE, **shape.rope_scaling})
    w = Weights(source, names.GGUF, names.HUGGING_FACE, _sizes(shape, mixture))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)
    window = _window(source)

    def mixer(x: str, layer: int) -> str:
        heads = Heads(
            shape.heads,
            shape.kv_heads,
            shape.head_width,
            shape.head_width**-0.5,
            window=None if layer % 2 else window,
            sinks=(w.name("sinks", layer), w.vector("sinks", layer)),
        )
        parts = w.matrix("query", layer), w.matrix("key", layer), w.matrix("value", layer)
        return b.attention(x, layer, parts, heads, rotary)

    def mlp(x: str, layer: int) -> str:
        logits = b.linear(x, w.floats("router", layer))
        (gate, up), down = _gate_and_up(w, layer), w.matrix("experts_down", layer)
        mine = Experts(
            mixture.experts, mixture.used, gate, up, down, alpha=ALPHA, shift=SHIFT, limit=LIMIT
        )
        return experts(b, x, logits, mine)

    return emit_decoder(b, w, shape, mixer, mlp=mlp)


def _gate_and_up(w: Weights, layer: int) -> tuple[Matrix, Matrix]:
    if w.is_gguf:
        return w.matrix("experts_gate", layer), w.matrix("experts_up", layer)
    by_turns = w.matrix("experts_gate_up", layer)
    rows = np.arange(by_turns.shape[0])
    return by_turns.reordered(rows[0::2]), by_turns.reordered(rows[1::2])


def _window(source: Source) -> int:
    """Of the even layers."""
    if isinstance(source, GgufFile):
        window: Any = source.number("gpt-oss.attention.sliding_window")
    else:
        window = source.config.get("sliding_window")
    if not isinstance(window, int | float) or window < 1 or window != int(window):
        raise contradiction(source.path, f"a token attends to {window} tokens")
    return int(window)


def _sizes(s: Shape, m: Mixture) -> dict[str, tuple[int | None, ...]]:
    return {
        **sizes_of(s),
        "sinks": (s.heads,),
        "router": (m.experts, s.width),
        "experts_gate": (m.experts * m.width, s.width),
        "experts_up": (m.experts * m.width, s.width),
        "experts_gate_up": (2 * m.experts * m.width, s.width),
        "experts_down": (m.experts * s.width, m.width),
    }
