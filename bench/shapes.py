"""A GGUF in Qwen3.5's shape with random weights: what a cache does for a hybrid model, without one.

    python -m bench.shapes

Written once into .cache/bench, the same bytes each time but for numpy's version. Tensors, names and
keys are those of real conversions (value heads tiled, norms plain); so is the tokenizer, SmolLM2's,
from the GGUF that the bench pulls. The text it writes is noise, in whole ASCII words only: no
special token wins, so replies end where they are told to, and read back as they were written.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.rows import ROOT
from flm.graph.weights.gguf import GgufFile
from tests.server.seeing import NAMES
from tests.server.seeing import TEMPLATE as SEEING

FOLDER = ROOT / ".cache" / "bench"
TEMPLATE = ROOT / "tests" / "fixtures" / "templates" / "tools_first.jinja"
SEED = 35
UNLIKELY = 0.05  # of an embedding's usual length, for tokens that should never win
UNUSED = 5  # GGUF's type of a token that text never gives
TOKENIZER_KEYS = (
    "bos_token_id",
    "eos_token_id",
    "unknown_token_id",
    "padding_token_id",
    "add_bos_token",
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes between Qwen3.5-0.8B's and half of them; every fourth layer is of full attention."""

    name: str = "qwen35-0.3B"
    layers: int = 16
    width: int = 1024
    mlp_width: int = 2560
    heads: int = 8
    kv_heads: int = 2
    head_width: int = 256
    key_heads: int = 8
    value_heads: int = 16
    state_width: int = 128
    taps: int = 4
    interval: int = 4
    rotary_width: int = 64
    context_length: int = 32_768

    @property
    def inner(self) -> int:
        return self.value_heads * self.state_width

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.state_width + self.inner

    def is_recurrent(self, layer: int) -> bool:
        return (layer + 1) % self.interval != 0


TINY = Shape(
    name="qwen35-tiny-128k",
    layers=4,
    width=128,
    mlp_width=256,
    heads=4,
    head_width=64,
    key_heads=2,
    value_heads=4,
    state_width=64,
    rotary_width=16,
    context_length=131_072,
)


def qwen35(tokenizer_from: Path, *, type: str = "Q4_1", shape: Shape | None = None) -> Path:
    """The file's path; it is written first if it is not there. `type` is what matrices are in."""
    shape = shape or Shape()
    path = FOLDER / f"{shape.name}.{type}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, GgufFile(tokenizer_from), shape, type)
    return path


def shortened(gguf: Path, layers: int) -> Path:
    """A model's first layers only: what it says is noise, what it costs is next to nothing."""
    from gguf import GGUFReader, GGUFWriter

    path = FOLDER / f"{gguf.stem}.{layers}-layers.gguf"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(gguf)
    family = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(path.with_suffix(".part"), family)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = layers if key == f"{family}.block_count" else field.contents()
            writer.add_key_value(key, value, field.types[0], *field.types[1:2])
    for tensor in reader.tensors:
        _, block, layer, *_ = ("." + tensor.name).split(".")
        if block != "blk" or int(layer) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer, path)
    return path


def _finish(writer: Any, path: Path) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".part").rename(path)


def _write(path: Path, vocabulary: GgufFile, shape: Shape, type: str) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, quants

    quantised = GGMLQuantizationType[type]
    writer = GGUFWriter(path.with_suffix(".part"), "qwen35")
    writer.add_name(f"{shape.name} shape, random weights")
    writer.add_file_type(LlamaFileType[f"MOSTLY_{type}"])
    writer.add_quantization_version(2)
    add_sizes(writer, shape)
    add_tokenizer(writer, vocabulary)
    tokens = vocabulary.metadata["tokenizer.ggml.tokens"]
    for name, values in _tensors(shape, tokens):
        if values.ndim == 2 and "conv1d" not in name:
            writer.add_tensor(name, quants.quantize(values, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(name, values)
    _finish(writer, path)


def add_sizes(writer: Any, s: Shape) -> None:
    writer.add_block_count(s.layers)
    writer.add_context_length(s.context_length)
    writer.add_embedding_length(s.width)
    writer.add_feed_forward_length(s.mlp_width)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_width)
    writer.add_value_length(s.head_width)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(s.rotary_width)
    third = s.rotary_width // 6  # of half the rotary width
    writer.add_rope_dimension_sections([s.rotary_width // 2 - 2 * third, third, third, 0])
    writer.add_ssm_conv_kernel(s.taps)
    writer.add_ssm_state_size(s.state_width)
    writer.add_ssm_group_count(s.key_heads)
    writer.add_ssm_time_step_rank(s.value_heads)
    writer.add_ssm_inner_size(s.inner)
    writer.add_full_attention_interval(s.interval)
    recurrent = [s.is_recurrent(layer) for layer in range(s.layers)]
    writer.add_array("qwen35.attention.recurrent_layers", recurrent)


def add_tokenizer(
    writer: Any, vocabulary: GgufFile, *, tokens_least: int = 0, sees: bool = False
) -> None:
    """SmolLM2's, and unused tokens up to as many as a model's own would have. `sees`: with tokens
    and a template for pictures.
    """
    keys = vocabulary.metadata
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    tokens = [NAMES.get(token, token) if sees else token for token in tokens]
    unused = range(len(tokens), tokens_least)
    writer.add_tokenizer_model(keys["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(keys["tokenizer.ggml.pre"])
    writer.add_token_list([*tokens, *(f"<|unused {token}|>" for token in unused)])
    writer.add_token_types([*types, *(UNUSED for _ in unused)])
    writer.add_token_merges(keys["tokenizer.ggml.merges"])
    for key in TOKENIZER_KEYS:
        value = keys[f"tokenizer.ggml.{key}"]
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    writer.add_chat_template(SEEING if sees else TEMPLATE.read_text())


def likely_tokens(tokens: list[str], *, tokens_least: int = 0) -> npt.NDArray[np.bool_]:
    """Which of them may win: whole ASCII words, none of the unused behind them."""
    likely = [token.removeprefix("Ġ").isalpha() and token.lstrip("Ġ").isascii() for token in tokens]
    return np.array(likely + [False] * (tokens_least - len(tokens)))


def _tensors(s: Shape, tokens: list[str]) -> Iterator[tuple[str, Floats]]:
    random = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Floats:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(scale * columns**-0.5)

    def norm(size: int) -> Floats:
        return random.uniform(0.8, 1.2, size).astype(np.float32)

    embedding = matrix(len(tokens), s.width, scale=3)
    embedding[~likely_tokens(tokens)] *= np.float32(UNLIKELY)
    yield "token_embd.weight", embedding
    yield "output_norm.weight", norm(s.width)
    for layer in range(s.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", norm(s.width)
        if s.is_recurrent(layer):
            yield block + "attn_qkv.weight", matrix(s.channels, s.width)
            yield block + "attn_gate.weight", matrix(s.inner, s.width)
            yield block + "ssm_alpha.weight", matrix(s.value_heads, s.width)
            yield block + "ssm_beta.weight", matrix(s.value_heads, s.width)
            # Decay and step as their initialisation has them: memories of ten to thousands.
            yield block + "ssm_a", -random.uniform(1, 16, s.value_heads).astype(np.float32)
            step = np.exp(random.uniform(np.log(1e-3), np.log(1e-1), s.value_heads))
            yield block + "ssm_dt.bias", np.log(np.expm1(step)).astype(np.float32)
            yield block + "ssm_conv1d.weight", matrix(s.channels, s.taps)
            yield block + "ssm_norm.weight", norm(s.state_width)
            yield block + "ssm_out.weight", matrix(s.width, s.inner)
        else:
            wide, narrow = s.heads * s.head_width, s.kv_heads * s.head_width
            yield block + "attn_q.weight", matrix(2 * wide, s.width)
            yield block + "attn_k.weight", matrix(narrow, s.width)
            yield block + "attn_v.weight", matrix(narrow, s.width)
            yield block + "attn_q_norm.weight", norm(s.head_width)
            yield block + "attn_k_norm.weight", norm(s.head_width)
            yield block + "attn_output.weight", matrix(s.width, wide)
        yield block + "post_attention_norm.weight", norm(s.width)
        yield block + "ffn_gate.weight", matrix(s.mlp_width, s.width)
        yield block + "ffn_up.weight", matrix(s.mlp_width, s.width)
        yield block + "ffn_down.weight", matrix(s.width, s.mlp_width)


def main() -> None:
    from dataclasses import replace

    from flm.hub.pull import pull
    from flm.settings import Settings

    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    tokenizer_from = pull("smollm2:135m", settings, progress=lambda *_: None)
    path = qwen35(tokenizer_from)
    print(f"{path}: {path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
