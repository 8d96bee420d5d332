"""GGUF files of every family with random weights, in the sizes of published models.

Metadata and tensor names are those of the family's tiny file in tests/fixtures, which llama.cpp
takes as well; sizes are a published model's, with fewer layers or experts where that is large. The
tokenizer is SmolLM2's, and of its tokens only whole ASCII words can win.
"""

import lzma
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.blocks import BLOCKS, Raw, random_blocks, stored
from bench.likes import CONTEXT_LENGTH, Like
from bench.rows import ROOT
from bench.shapes import UNLIKELY, add_tokenizer, likely_tokens
from flm.graph.weights.gguf import GgufFile

FIXTURES = ROOT / "tests" / "fixtures"
SEED = 12
# What llama.cpp takes instead where rows are not whole blocks of 256.
SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def write(path: Path, like: Like, type: str, vocabulary: GgufFile) -> None:
    """`type` is a quantisation as llama.cpp names it: Q4_K_M, Q4_0, or MXFP4 (of experts)."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

    with _fixture(like) as small:
        reader = GGUFReader(small)
        family = str(reader.fields["general.architecture"].contents())
        writer = GGUFWriter(path, family)
        tokens = vocabulary.metadata["tokenizer.ggml.tokens"]
        likely = likely_tokens(tokens, tokens_least=like.vocabulary)
        usual = {**_usual_keys(like), "vocab_size": len(likely), **like.keys}
        for key, known in reader.fields.items():
            prefix, _, short = key.partition(".")
            if prefix in (family, "general") and key != "general.architecture":
                value = usual.get(short, known.contents()) if prefix == family else known.contents()
                writer.add_key_value(key, value, known.types[0], *known.types[1:2])
        tensors = [(t.name, t.tensor_type.name, t.data.ndim) for t in reader.tensors]
    add_tokenizer(writer, vocabulary, tokens_least=like.vocabulary, sees=like.sees)
    wanted = list(_tensors(like, type, tensors, len(likely)))
    for name, sizes, kind in wanted:
        raw = stored(sizes, kind)
        dtype = np.dtype({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
        size = int(np.prod(raw)) * dtype.itemsize
        writer.add_tensor_info(name, raw, dtype, size, GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(SEED)
    for name, sizes, kind in wanted:
        writer.write_tensor_data(_values(random, name, sizes, kind, likely))
    writer.close()


@contextmanager
def _fixture(like: Like) -> Iterator[Path]:
    (source,) = (FIXTURES / like.fixture).glob("*.gguf*")
    if source.suffix != ".xz":
        yield source
        return
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(lzma.decompress(source.read_bytes()))
        file.flush()
        yield Path(file.name)


def _usual_keys(like: Like) -> dict[str, object]:
    return {
        "block_count": like.layers,
        "context_length": CONTEXT_LENGTH,
        "embedding_length": like.width,
        "feed_forward_length": like.mlp_width,
        "attention.head_count": like.heads,
        "attention.head_count_kv": like.kv_heads,
        "attention.key_length": like.head_width,
        "attention.value_length": like.head_width,
        "rope.dimension_count": like.rotary_width,
        "expert_count": like.experts,
        "expert_feed_forward_length": like.expert_width,
        "expert_shared_feed_forward_length": like.expert_width,
    }


Sized = tuple[str, tuple[int, ...], str]  # name, sizes, type
Known = tuple[str, str, int]  # name, type, dimensions


def _tensors(like: Like, type: str, small: list[Known], vocabulary: int) -> Iterator[Sized]:
    def sized(known: Known, layer: int) -> Sized:
        name, kind, _ = known
        _, _, rest = name.partition("blk.")
        leaf = rest.partition(".")[2] if rest else name
        sizes = _sizes(like.varied(like, layer), vocabulary)[leaf]
        kind = _type(leaf, kind, sizes, type, like.layers, layer)
        return (f"blk.{layer}.{leaf}" if rest else name), sizes, kind

    for known in small:
        if not known[0].startswith("blk."):
            yield sized(known, like.layers - 1)
    for layer in range(like.layers):
        for known in small:
            if known[0].startswith(f"blk.{like.pattern(layer)}."):
                yield sized(known, layer)


def _type(leaf: str, known: str, sizes: tuple[int, ...], type: str, layers: int, layer: int) -> str:
    """As llama.cpp lays types out; small things stay as they are in the fixture."""
    if known not in BLOCKS or type == "MXFP4":
        return known
    is_head = leaf in ("token_embd.weight", "output.weight")
    if type == "Q4_0":
        wanted = "Q6_K" if is_head else "Q4_0"
    else:
        eighth = layers // 8
        more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        felt = leaf in ("ffn_down.weight", "attn_v.weight") and more
        wanted = "Q6_K" if is_head or felt else "Q4_K"
        if leaf == "attn_qkv.weight":
            wanted = "Q5_K"
    return wanted if sizes[-1] % BLOCKS[wanted].weights == 0 else SMALLER[wanted]


def _sizes(s: Like, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """By a tensor's name; llama.cpp's order is the other way round."""
    wide, narrow = s.heads * s.head_width, s.kv_heads * s.head_width
    inner = s.value_heads * s.state_width
    channels = 2 * s.key_heads * s.state_width + inner
    norms = ("output_norm", "token_embd_norm", "attn_norm", "ffn_norm", "post_attention_norm")
    return {
        **{f"{norm}.weight": (s.width,) for norm in (*norms, "post_ffw_norm", "post_norm")},
        "token_embd.weight": (vocabulary, s.width),
        "output.weight": (vocabulary, s.width),
        "rope_freqs.weight": (s.head_width // 2,),
        "rope_factors_long.weight": (s.rotary_width // 2,),
        "rope_factors_short.weight": (s.rotary_width // 2,),
        "attn_q.weight": (2 * wide if s.key_heads else wide, s.width),
        "attn_q.bias": (wide,),
        "attn_k.weight": (narrow, s.width),
        "attn_k.bias": (narrow,),
        "attn_v.weight": (narrow, s.width),
        "attn_v.bias": (narrow,),
        "attn_qkv.weight": (channels if s.key_heads else wide + 2 * narrow, s.width),
        "attn_q_norm.weight": (s.head_width,),
        "attn_k_norm.weight": (s.head_width,),
        "attn_sinks.weight": (s.heads,),
        "attn_output.weight": (s.width, wide),
        "attn_output.bias": (s.width,),
        "ffn_gate.weight": (s.mlp_width, s.width),
        "ffn_up.weight": (s.packed * s.mlp_width, s.width),
        "ffn_down.weight": (s.width, s.mlp_width),
        # mixtures
        "ffn_gate_inp.weight": (s.experts, s.width),
        "ffn_gate_inp.bias": (s.experts,),
        "ffn_gate_inp_shexp.weight": (s.width,),
        "ffn_gate_exps.weight": (s.experts, s.expert_width, s.width),
        "ffn_gate_exps.bias": (s.experts, s.expert_width),
        "ffn_up_exps.weight": (s.experts, s.expert_width, s.width),
        "ffn_up_exps.bias": (s.experts, s.expert_width),
        "ffn_down_exps.weight": (s.experts, s.width, s.expert_width),
        "ffn_down_exps.bias": (s.experts, s.width),
        "ffn_gate_shexp.weight": (s.expert_width, s.width),
        "ffn_up_shexp.weight": (s.expert_width, s.width),
        "ffn_down_shexp.weight": (s.width, s.expert_width),
        # convolutions and the delta rule
        "shortconv.conv.weight": (s.width, s.taps),
        "shortconv.in_proj.weight": (3 * s.width, s.width),
        "shortconv.out_proj.weight": (s.width, s.width),
        "attn_gate.weight": (inner, s.width),
        "ssm_alpha.weight": (s.value_heads, s.width),
        "ssm_beta.weight": (s.value_heads, s.width),
        "ssm_a": (s.value_heads,),
        "ssm_dt.bias": (s.value_heads,),
        "ssm_conv1d.weight": (channels, s.taps),
        "ssm_norm.weight": (s.state_width,),
        "ssm_out.weight": (s.width, inner),
        # what each layer adds of its own
        "per_layer_token_embd.weight": (vocabulary, s.layers * s.extra_width),
        "per_layer_model_proj.weight": (s.layers * s.extra_width, s.width),
        "per_layer_proj_norm.weight": (s.extra_width,),
        "inp_gate.weight": (s.extra_width, s.width),
        "proj.weight": (s.width, s.extra_width),
        "layer_output_scale.weight": (1,),
    }


def _values(
    random: np.random.Generator,
    name: str,
    sizes: tuple[int, ...],
    type: str,
    likely: npt.NDArray[np.bool_],
) -> Raw:
    if name in ("token_embd.weight", "output.weight"):
        usual, little = (random_blocks(random, sizes, type, scale=3 * x) for x in (1, UNLIKELY))
        chosen: Raw = np.where(likely[:, None], usual, little)
        return chosen
    if type in BLOCKS:
        return random_blocks(random, sizes, type)
    if name.endswith("ssm_a"):
        return -random.uniform(1, 16, sizes).astype(np.float32)
    if name.endswith("ssm_dt.bias"):
        step = np.exp(random.uniform(np.log(1e-3), np.log(1e-1), sizes))
        return np.log(np.expm1(step)).astype(np.float32)
    if len(sizes) == 1 and any(word in name for word in ("norm", "rope", "scale")):
        return np.ones(sizes, np.float32)
    values: npt.NDArray[Any] = random.standard_normal(sizes, dtype=np.float32)
    values = values * np.float32(sizes[-1] ** -0.5)
    return values.astype(np.float16) if type == "F16" else values
