"""Sizes of published models, one of each family, in fewer layers or experts where it is large."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

CONTEXT_LENGTH = 8192


@dataclass(frozen=True, slots=True)
class Like:
    """`keys` are metadata besides the usual sizes; `pattern` says which layer of the fixture one is
    like; `varied` gives the sizes of a layer where they differ.
    """

    model: str  # whose sizes these are
    fixture: str
    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_width: int
    rotary_width: int
    type: str = "Q4_K_M"
    packed: int = 1  # matrices in ffn_up
    experts: int = 0
    expert_width: int = 0
    key_heads: int = 0
    value_heads: int = 0
    state_width: int = 128
    taps: int = 0
    extra_width: int = 0  # of what each layer adds of its own
    vocabulary: int = 0  # tokens at the least
    sees: bool = False
    keys: Mapping[str, object] = field(default_factory=dict)
    pattern: Callable[[int], int] = lambda layer: 0
    varied: Callable[["Like", int], "Like"] = lambda like, layer: like


def _hybrid(layer: int) -> int:
    return 3 if layer % 4 == 3 else 0


def _delta(layers: int, key_heads: int, value_heads: int) -> dict[str, object]:
    return {
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.group_count": key_heads,
        "ssm.time_step_rank": value_heads,
        "ssm.state_size": 128,
        "ssm.inner_size": 128 * value_heads,
        "attention.recurrent_layers": [_hybrid(layer) == 0 for layer in range(layers)],
    }


LFM2_ATTENDS = (2, 5, 8, 10, 12, 14)
GEMMA4_LAYERS, GEMMA4_OWN = 15, 10  # of 35 and 15: the last ones store no rows
GEMMA4_FULL = tuple(layer % 5 == 4 for layer in range(GEMMA4_LAYERS))


def _gemma4(like: Like, layer: int) -> Like:
    wide = like.mlp_width * (1 if layer < GEMMA4_OWN else 2)
    return replace(like, mlp_width=wide, head_width=512 if GEMMA4_FULL[layer] else 256)


FOUR_B = Like(
    "Qwen3.5 4B",
    "qwen35_k4v8",
    32,
    2560,
    9216,
    16,
    4,
    256,
    64,
    key_heads=16,
    value_heads=32,
    taps=4,
    vocabulary=248_320,
    keys=_delta(32, 16, 32),
    pattern=_hybrid,
)
LIKES = {
    "llama": Like("Llama 3.2 1B, 8 of 16 layers", "llama", 8, 2048, 8192, 32, 8, 64, 64),
    "qwen2": Like("Qwen2.5 0.5B", "qwen2", 24, 896, 4864, 14, 2, 64, 64),
    "qwen3": Like("Qwen3 0.6B", "qwen3", 28, 1024, 3072, 16, 8, 128, 128),
    "granite": Like(
        "Granite 4.0 350M",
        "granite",
        28,
        1024,
        2048,
        16,
        4,
        64,
        64,
        keys={"attention.scale": 64**-0.5},
    ),
    "phi3": Like(
        "half of Phi-4 mini",
        "phi3",
        16,
        1536,
        4096,
        12,
        4,
        128,
        96,
        packed=2,
        keys={"rope.scaling.original_context_length": CONTEXT_LENGTH // 2},
    ),
    "smollm3": Like("half of SmolLM3 3B", "smollm3", 20, 1024, 5632, 8, 2, 128, 128),
    "gemma3": Like(
        "Gemma 3 1B, 18 of 26 layers",
        "gemma3",
        18,
        1152,
        6912,
        4,
        1,
        256,
        256,
        keys={"attention.sliding_window": 512},
    ),
    "gemma4": Like(
        "Gemma 4 E2B, 15 of 35 layers",
        "gemma4",
        GEMMA4_LAYERS,
        1536,
        6144,
        8,
        1,
        512,
        512,
        extra_width=256,
        keys={
            "feed_forward_length": [6144 if i < GEMMA4_OWN else 12288 for i in range(15)],
            "attention.shared_kv_layers": GEMMA4_LAYERS - GEMMA4_OWN,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [not full for full in GEMMA4_FULL],
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "rope.dimension_count_swa": 256,
            "embedding_length_per_layer_input": 256,
        },
        pattern=lambda layer: 2 * GEMMA4_FULL[layer] + 3 * (layer >= GEMMA4_OWN),
        varied=_gemma4,
    ),
    "lfm2": Like(
        "LFM2 350M",
        "lfm2",
        16,
        1024,
        4608,
        16,
        8,
        64,
        64,
        taps=3,
        keys={"attention.head_count_kv": [8 * (i in LFM2_ATTENDS) for i in range(16)]},
        pattern=lambda layer: 2 * (layer in LFM2_ATTENDS),
    ),
    "gptoss": Like(
        "a third of GPT-OSS 20B, 8 layers of 16 experts",
        "gptoss",
        8,
        1024,
        1024,
        16,
        2,
        64,
        64,
        type="MXFP4",
        experts=16,
        expert_width=1024,
        keys={"expert_used_count": 4, "attention.sliding_window": 128},
    ),
    "qwen35": Like(
        "half of Qwen3.5 0.8B",
        "qwen35_k4v8",
        16,
        1024,
        2560,
        8,
        2,
        256,
        64,
        key_heads=8,
        value_heads=16,
        taps=4,
        keys=_delta(16, 8, 16),
        pattern=_hybrid,
    ),
    "qwen35moe": Like(
        "half of Qwen3.6 35B-A3B, 8 layers of 32 experts",
        "qwen35moe",
        8,
        1024,
        512,
        8,
        2,
        256,
        64,
        type="Q4_0",
        experts=32,
        expert_width=512,
        key_heads=8,
        value_heads=16,
        taps=4,
        keys={**_delta(8, 8, 16), "expert_used_count": 8},
        pattern=_hybrid,
    ),
}
# Only if asked for by name.
LARGE = {"qwen35-4b": FOUR_B}
