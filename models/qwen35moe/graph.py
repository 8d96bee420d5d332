"""Qwen3.5 and Qwen3.6 with a mixture of experts for an MLP: a few of many for each token, and one
that all share, through a gate of its own.
"""

from flm.graph.blocks import Blocks
from flm.graph.emit import Emitter
from flm.graph.experts import Experts, experts
from flm.graph.layers import Numerics
from flm.graph.weights.blocks import Matrix
from flm.models.decoder import gated_mlp
from flm.models.family import Emitted, Source
from flm.models.mixture import Mixture, mixture_of
from flm.models.qwen35.graph import emit_hybrid, hybrid_of, weights_of
from flm.models.qwen35moe import names
from flm.models.shape import text_config
from flm.models.weights import Weights


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    hybrid, mixture = hybrid_of(source), mixture_of(source, text_config(source))
    stacked, width = mixture.experts * mixture.width, hybrid.shape.width
    w = weights_of(
        source,
        hybrid,
        (names.GGUF, names.HUGGING_FACE),
        {
            "gate": (mixture.shared_width, width),
            "up": (mixture.shared_width, width),
            "down": (width, mixture.shared_width),
            "shared_gate": (1, width),
            "router": (mixture.experts, width),
            "experts_gate": (stacked, width),
            "experts_up": (stacked, width),
            "experts_gate_up": (2 * stacked, width),
            "experts_down": (mixture.experts * width, mixture.width),
        },
    )
    b = Blocks(emitter, numerics, epsilon=hybrid.shape.epsilon)
    shared = gated_mlp(b, w, b.swiglu)

    def mlp(x: str, layer: int) -> str:
        router, gate = w.floats("router", layer), w.floats("shared_gate", layer)
        logits, open_ = b.linears(x, router, gate)
        y = experts(b, x, logits, _experts(w, mixture, layer))
        return b.add(y, b.gate(shared(x, layer), open_))

    return emit_hybrid(b, w, hybrid, mlp=mlp)


def _experts(w: Weights, m: Mixture, layer: int) -> Experts:
    gate, up = _gate_and_up(w, m, layer)
    return Experts(m.experts, m.used, gate, up, w.matrix("experts_down", layer))


def _gate_and_up(w: Weights, m: Mixture, layer: int) -> tuple[Matrix, Matrix]:
    if w.has("experts_gate"):
        return w.matrix("experts_gate", layer), w.matrix("experts_up", layer)
    return w.matrix("experts_gate_up", layer).halved(m.experts)
