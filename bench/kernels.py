"""What a decoded token, and a chunk of a prompt, cost on the NPU by their bytes alone:
`python -m bench.kernels`.

Nothing is run: each design's transfers are counted at the shapes of real models, as its stream
moves them. Decoding there is bound by DRAM, of which others have measured 40 to 50 GB/s; dispatches
cost more on top (45 to 200 us each, as reported by others), which is said beside it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from math import prod

from bench.rows import keep
from flm.devices.xrt.build import design_of
from flm.devices.xrt.package import Wanted
from flm.devices.xrt.plan import CHUNK
from npu_kernels.bf16 import bits_of
from npu_kernels.fakexrt.configuration import record_of
from npu_kernels.iron_sim.record import Push, Record

CONTEXTS = (1024, 4096, 32_768)
GB_PER_S = (40, 45, 50)
EPSILON = bits_of(1e-6)


@dataclass(frozen=True, slots=True)
class Model:
    """`linear`: of so many layers, those of the delta rule; heads of both are `key` and `value`."""

    name: str
    width: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int
    head_width: int
    rotary: int
    vocabulary: int
    linear: int = 0
    key: int = 0
    value: int = 0
    state: int = 128

    @property
    def gated(self) -> bool:
        return self.linear > 0


def _qwen(name: str, width: int, layers: int, mlp: int, heads: int, kv: int, value: int) -> Model:
    linear = layers * 3 // 4
    return Model(name, width, layers, mlp, heads, kv, 256, 64, 248_320, linear, 16, value)


MODELS = (
    Model("llama3.2:1b", 2048, 16, 8192, 32, 8, 64, 64, 128_256),
    _qwen("qwen3.5:0.8b", 1024, 24, 3584, 8, 2, 16),
    _qwen("qwen3.5:2b", 2048, 24, 6144, 8, 2, 16),
    _qwen("qwen3.5:4b", 2560, 32, 9216, 16, 4, 32),
    _qwen("qwen3.5:9b", 4096, 32, 12_288, 16, 4, 32),
)


def product(rows: int, columns: int) -> Wanted:
    return Wanted("qlinear", "qlinear", {"N": rows, "K": columns})


def norm(width: int) -> Wanted:
    return Wanted("rms_norm", "add_rms_norm", {"N": width, "EPSILON": EPSILON})


def products(rows: int, columns: int) -> Wanted:
    return Wanted("qgemm", "qgemm", {"T": CHUNK, "N": -(-rows // 128) * 128, "K": columns})


def head_norm(heads: int, width: int, tokens: int = 1) -> Wanted:
    size = {"N": width, "HEADS": heads, "T": tokens, "ROW": width * heads}
    return Wanted("rms_norm", "rms_norm", {**size, "EPSILON": EPSILON})


def dispatches(m: Model, context: int, head_bits: int) -> Iterator[tuple[Wanted, int]]:
    """Designs, and how often a token takes each."""
    full, wide = m.layers - m.linear, m.heads * m.head_width
    yield norm(m.width), 2 * m.layers + 1
    yield product(wide * (1 + m.gated) + 2 * m.kv_heads * m.head_width, m.width), full
    parameters = {"HEADS": m.heads, "KV_HEADS": m.kv_heads, "W": m.head_width, "R": m.rotary}
    attention = {**parameters, "C": context, "SCALE": bits_of(m.head_width**-0.5), "WINDOW": 0}
    yield Wanted("attention", "attention", attention), full
    yield product(m.width, wide), full
    if m.gated:
        yield head_norm(m.heads, m.head_width), full
        yield head_norm(m.kv_heads, m.head_width), full
        yield Wanted("gate", "gate", {"N": wide, "T": 1, "ROW": wide}), full
        yield from _delta(m)
    yield product(2 * m.mlp, m.width), m.layers
    yield Wanted("swiglu", "swiglu", {"N": m.mlp, "T": 1, "ROW": m.mlp}), m.layers
    yield product(m.width, m.mlp), m.layers
    head = {"N": m.vocabulary, "K": m.width, "BITS": head_bits, "BLOCK": 32}
    yield Wanted("lm_head", "lm_head", head), 1


def _delta(m: Model) -> Iterator[tuple[Wanted, int]]:
    mixed, out = (2 * m.key + m.value) * m.state, m.value * m.state
    yield product(mixed + out + 2 * m.value, m.width), m.linear
    conv = {"T": 1, "N": mixed, "ROW": mixed, "TAPS": 4, "SILU": 1}
    yield Wanted("causal_conv", "causal_conv", conv), m.linear
    yield head_norm(m.key, m.state), 2 * m.linear
    delta = {"KH": m.key, "H": m.value, "W": m.state, "SCALE": bits_of(m.state**-0.5)}
    yield Wanted("gated_delta", "gated_delta", delta), m.linear
    gated = {"HEADS": m.value, "W": m.state, "EPSILON": EPSILON}
    yield Wanted("gated_rms_norm", "gated_rms_norm", gated), m.linear
    yield product(m.width, out), m.linear


def chunk_dispatches(m: Model, context: int) -> Iterator[tuple[Wanted, int]]:
    """Designs, and how often a chunk of a prompt takes each, the last product left out."""
    full, wide = m.layers - m.linear, m.heads * m.head_width
    yield Wanted("rms_norm", "residual_sum", {"N": m.width, "T": CHUNK}), 2 * m.layers
    yield head_norm(1, m.width, CHUNK), 2 * m.layers + 1
    qkv = wide * (1 + m.gated) + 2 * m.kv_heads * m.head_width
    yield products(qkv, m.width), full
    shape = {"HEADS": m.heads, "KV_HEADS": m.kv_heads, "W": m.head_width, "C": context}
    yield Wanted("rotary", "rotary", {**shape, "T": CHUNK, "R": m.rotary}), full
    some = 8 if m.head_width > 64 else CHUNK  # of the queries, as a core holds them
    flash = {**shape, "T": some, "SCALE": bits_of(m.head_width**-0.5)}
    yield Wanted("flash_attention", "flash_attention", flash), full * (CHUNK // some)
    yield products(m.width, wide), full
    if m.gated:
        yield head_norm(m.heads, m.head_width, CHUNK), full
        yield head_norm(m.kv_heads, m.head_width, CHUNK), full
        yield Wanted("gate", "gate", {"N": wide, "T": CHUNK, "ROW": wide}), full
        yield from _delta_chunk(m)
    yield products(2 * m.mlp, m.width), m.layers
    yield Wanted("swiglu", "swiglu", {"N": m.mlp, "T": CHUNK, "ROW": 2 * m.mlp}), m.layers
    yield products(m.width, m.mlp), m.layers


def _delta_chunk(m: Model) -> Iterator[tuple[Wanted, int]]:
    mixed, out = (2 * m.key + m.value) * m.state, m.value * m.state
    yield products(mixed + out + 2 * m.value, m.width), m.linear
    conv = {"T": CHUNK, "N": mixed, "ROW": mixed, "TAPS": 4, "SILU": 1}
    yield Wanted("causal_conv", "causal_conv", conv), m.linear
    yield head_norm(m.key, m.state, CHUNK), 2 * m.linear
    delta = {"KH": m.key, "H": m.value, "W": m.state, "SCALE": bits_of(m.state**-0.5)}
    yield Wanted("gated_delta_chunk", "gated_delta_chunk", delta), m.linear
    gated = {"HEADS": CHUNK * m.value, "W": m.state, "EPSILON": EPSILON}
    yield Wanted("gated_rms_norm", "gated_rms_norm", gated), m.linear
    yield products(m.width, out), m.linear


def traffic(wanted: Wanted) -> int:
    """Bytes that a dispatch moves from and to DRAM, at the most its values ask for."""
    design = design_of(wanted)
    parameters = {name: wanted.parameters[name] for name in design.parameters}
    most = {value.name: value.bounds(parameters)[1] for value in design.values}
    return moved(record_of(import_module(design.module), {**parameters, **most}))


def moved(record: Record) -> int:
    """Bytes of every fill and drain of its sequence."""
    return sum(
        prod(step.transfer.sizes) * record.arguments[step.transfer.argument].dtype.itemsize
        for step in record.sequence
        if isinstance(step, Push)
    )


def measure(what: str, tokens: int, wanted: Iterable[tuple[Wanted, int]]) -> None:
    bytes_of: Counter[str] = Counter()
    count = 0
    for each, times in wanted:
        bytes_of[each.design] += traffic(each) * times
        count += times
    total = sum(bytes_of.values())
    keep(
        "kernels",
        what,
        gb_per_token=total / tokens / 1e9,
        **{f"tokens_per_s_at_{speed}": tokens * speed * 1e9 / total for speed in GB_PER_S},
        dispatches=count,
        bytes_by_design=[[name, size] for name, size in bytes_of.most_common()],
    )


def main() -> None:
    for model in MODELS:
        for context in CONTEXTS:
            what = f"{model.name} at {context:,}"
            measure(f"{what}, 4-bit head", 1, dispatches(model, context, 4))
            measure(f"{what}, prompt", CHUNK, chunk_dispatches(model, context))
        what = f"{model.name} at {CONTEXTS[0]:,}, 8-bit head"
        measure(what, 1, dispatches(model, CONTEXTS[0], 8))


if __name__ == "__main__":
    main()
