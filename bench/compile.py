"""What compiling a model of four billion weights takes, and then loading it:

    python -m bench.compile

The file has Qwen3.5 4B's shape and Q4_K_M's mix of types; its blocks are random bytes with scales
of a usual size. Written tensor by tensor into .cache/bench and removed afterwards, like the bundle.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.blocks import Raw, random_blocks, stored
from bench.rows import ROOT, keep
from bench.shapes import FOLDER, Shape, add_sizes, add_tokenizer
from flm.graph.weights.gguf import GgufFile

SECONDS_MOST, PEAK_MIB_MOST = 90, 3 * 1024
VOCABULARY = 248_320
FOUR_B = Shape(
    name="qwen35-4B",
    layers=32,
    width=2560,
    mlp_width=9216,
    heads=16,
    kv_heads=4,
    key_heads=16,
    value_heads=32,
)

COMPILE = """
import json, resource, sys, time
from pathlib import Path
from flm.models.compile import compile_model
start = time.perf_counter(), time.process_time()
compile_model(Path(sys.argv[1]), Path(sys.argv[2]))
print(json.dumps({
    "seconds": time.perf_counter() - start[0],
    "processor_s": time.process_time() - start[1],
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""
LOAD = """
import json, sys, time
from pathlib import Path
from flm.devices.cpu import CpuDevice
from flm.graph.bundle import Bundle
bundle = Bundle.open(Path(sys.argv[2]))
device = CpuDevice(threads=2)
start = time.perf_counter(), time.process_time()
program = device.load(bundle.graph("float32", 8192))
lines = Path("/proc/self/status").read_text().splitlines()
status = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("Rss", "Vm"))}
print(json.dumps({
    "load_s": time.perf_counter() - start[0],
    "processor_s": time.process_time() - start[1],
    "loaded_mib": int(status["VmRSS"]) / 1024,
    "own_mib": int(status["RssAnon"]) / 1024,
    "load_peak_mib": int(status["VmHWM"]) / 1024,
}))
"""

Sized = tuple[str, tuple[int, ...], str]  # name, shape, type


def tensors(s: Shape) -> Iterator[Sized]:
    """As llama.cpp's Q4_K_M lays types out: 6 bits for the head, for half of what is most felt."""
    yield "token_embd.weight", (VOCABULARY, s.width), "Q6_K"
    yield "output_norm.weight", (s.width,), "F32"
    for layer in range(s.layers):
        eighth = s.layers // 8
        more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        felt = "Q6_K" if more else "Q4_K"
        sizes: dict[str, tuple[tuple[int, ...], str]] = {
            "attn_norm.weight": ((s.width,), "F32"),
            "post_attention_norm.weight": ((s.width,), "F32"),
            "ffn_gate.weight": ((s.mlp_width, s.width), "Q4_K"),
            "ffn_up.weight": ((s.mlp_width, s.width), "Q4_K"),
            "ffn_down.weight": ((s.width, s.mlp_width), felt),
        }
        if s.is_recurrent(layer):
            sizes |= {
                "attn_qkv.weight": ((s.channels, s.width), "Q5_K"),
                "attn_gate.weight": ((s.inner, s.width), "Q4_K"),
                "ssm_alpha.weight": ((s.value_heads, s.width), "F32"),
                "ssm_beta.weight": ((s.value_heads, s.width), "F32"),
                "ssm_a": ((s.value_heads,), "F32"),
                "ssm_dt.bias": ((s.value_heads,), "F32"),
                "ssm_conv1d.weight": ((s.channels, s.taps), "F32"),
                "ssm_norm.weight": ((s.state_width,), "F32"),
                "ssm_out.weight": ((s.width, s.inner), "Q5_K"),
            }
        else:
            wide, narrow = s.heads * s.head_width, s.kv_heads * s.head_width
            sizes |= {
                "attn_q.weight": ((2 * wide, s.width), "Q4_K"),
                "attn_k.weight": ((narrow, s.width), "Q4_K"),
                "attn_v.weight": ((narrow, s.width), felt),
                "attn_q_norm.weight": ((s.head_width,), "F32"),
                "attn_k_norm.weight": ((s.head_width,), "F32"),
                "attn_output.weight": ((s.width, wide), "Q4_K"),
            }
        for name, (shape, type) in sizes.items():
            yield f"blk.{layer}.{name}", shape, type


def write(path: Path, vocabulary: GgufFile, shape: Shape) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, "qwen35")
    add_sizes(writer, shape)
    add_tokenizer(writer, vocabulary, tokens_least=VOCABULARY)
    random = np.random.default_rng(4)
    for name, sizes, type in tensors(shape):
        raw = stored(sizes, type)
        dtype = np.dtype(np.float32 if type == "F32" else np.uint8)
        size = int(np.prod(raw)) * dtype.itemsize
        writer.add_tensor_info(name, raw, dtype, size, GGMLQuantizationType[type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, sizes, type in tensors(shape):
        writer.write_tensor_data(_values(random, name, sizes, type))
    writer.close()


def _values(random: np.random.Generator, name: str, sizes: tuple[int, ...], type: str) -> Raw:
    if type != "F32":
        return random_blocks(random, sizes, type)
    if len(sizes) == 1 and "norm" in name:
        return np.ones(sizes, np.float32)
    values = random.standard_normal(sizes, dtype=np.float32) * np.float32(sizes[-1] ** -0.5)
    return -np.abs(values) if name.endswith("ssm_a") else values


def _run(program: str, *arguments: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    result: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=ROOT))
    return result


def main() -> None:
    from flm.hub.pull import pull
    from flm.settings import Settings

    settings = replace(Settings(), model_path=ROOT / ".cache" / "flm")
    vocabulary = GgufFile(pull("smollm2:135m", settings, progress=lambda *_: None))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        source, bundle = Path(folder) / f"{FOUR_B.name}.Q4_K_M.gguf", Path(folder) / "bundle"
        write(source, vocabulary, FOUR_B)
        compiled = _run(COMPILE, source, bundle)
        keep(
            "compile",
            f"{FOUR_B.name} Q4_K_M, compiled",
            source_mib=source.stat().st_size // 2**20,
            bundle_mib=sum(file.stat().st_size for file in bundle.iterdir()) // 2**20,
            **compiled,
            seconds_most=SECONDS_MOST,
            peak_mib_most=PEAK_MIB_MOST,
        )
        source.unlink()
        keep("compile", f"{FOUR_B.name} Q4_K_M, loaded", **_run(LOAD, source, bundle))
        shutil.rmtree(bundle)


if __name__ == "__main__":
    main()
