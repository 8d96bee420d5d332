"""The frame of a decoder: in every layer a norm, a mixer of tokens, a norm and a gated MLP; then
the head. A family brings the mixer: what stands before the output projection; and another MLP, or
norms of what a branch gives (a sandwich), where it has them.
"""

from collections.abc import Callable

from flm.graph.blocks import Blocks
from flm.graph.weights.blocks import Matrix
from flm.memory.layout import MemoryLayout
from flm.models.family import Emitted
from flm.models.shape import Shape
from flm.models.weights import Weights

Mixer = Callable[[str, int], str]  # (normed x [B,T,width], layer) -> [B,T,mixed width]
Mlp = Callable[[str, int], str]  # (normed x [B,T,width], layer) -> [B,T,width]


def emit_decoder(
    b: Blocks,
    w: Weights,
    shape: Shape,
    mixer: Mixer,
    *,
    output: Callable[[int], Matrix] | None = None,
    mlp: Mlp | None = None,
    sandwich: bool = False,
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
    deep: int = 0,
) -> Emitted:
    """The whole graph. `output` gives each layer's output projection where it is not "output";
    `deep` is how many layers add a part of a picture's rows to what they give.
    """
    mlp = mlp or gated_mlp(b, w, b.swiglu)
    residual = b.embedding(w.matrix("embedding"), embedding_scale, deep=deep)
    with b.layer(0):
        x = b.rms_norm(residual, *w.norm("input_norm"))
    for i in range(shape.layers):
        with b.layer(i):
            x = mixer(x, i)
            last = i == shape.layers - 1
            if last:
                x, residual = b.last(x), b.last(residual)
            x = b.linear(x, output(i) if output else w.matrix("output", i))
            if sandwich:
                x = b.rms_norm(x, *w.norm("post_mixer_norm", i))
            x, residual = b.add_rms_norm(x, residual, *w.norm("mlp_norm", i))
            x = mlp(x, i)
            if sandwich:
                x = b.rms_norm(x, *w.norm("post_mlp_norm", i))
            if i < deep:
                x = b.deepened(x, i)
            name, following = w.norm("norm") if last else w.norm("input_norm", i + 1)
            if last:
                following = following * logit_scale
            x, residual = b.add_rms_norm(x, residual, name, following)
    b.head(x, w.matrix("head" if w.has("head") else "embedding"))
    vocabulary = w.matrix("embedding").shape[0]
    layout, notes = MemoryLayout(tuple(b.memory)), frozenset(b.notes)
    width = shape.width * (1 + deep)
    return Emitted(layout, vocabulary, shape.context_length, notes=notes, width=width)


def gated_mlp(b: Blocks, w: Weights, activate: Callable[[str, str], str]) -> Mlp:
    """`activate` takes what the gate and the up projection give."""

    def mlp(x: str, layer: int) -> str:
        if w.has("gate_up"):
            gate, up = b.split(b.linear(x, w.matrix("gate_up", layer)), 2)
        else:
            gate, up = b.linears(x, w.matrix("gate", layer), w.matrix("up", layer))
        return b.linear(activate(gate, up), w.matrix("down", layer))

    return mlp


def sizes_of(s: Shape) -> dict[str, tuple[int | None, ...]]:
    """Of the tensors in flm.models.names."""
    wide, narrow = s.heads * s.head_width, s.kv_heads * s.head_width
    return {
        "embedding": (None, s.width),
        "head": (None, s.width),
        "norm": (s.width,),
        "input_norm": (s.width,),
        "query": (wide, s.width),
        "key": (narrow, s.width),
        "value": (narrow, s.width),
        "output": (s.width, wide),
        "post_mixer_norm": (s.width,),
        "mlp_norm": (s.width,),
        "post_mlp_norm": (s.width,),
        "gate": (s.mlp_width, s.width),
        "up": (s.mlp_width, s.width),
        "down": (s.width, s.mlp_width),
    }
