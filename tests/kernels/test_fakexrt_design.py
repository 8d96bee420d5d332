"""An IRON design through the whole stack: xclbin, pyxrt's API, stream, array, C++ kernels."""

from pathlib import Path

import numpy as np
import pytest

from npu_kernels import fakexrt
from npu_kernels.attention import design, reference
from npu_kernels.bf16 import bits_of
from npu_kernels.fakexrt import Misuse, Simulated
from npu_kernels.fakexrt.configuration import configure, record_of
from npu_kernels.iron_sim import DesignFault
from npu_kernels.iron_sim.stream import stream
from npu_kernels.swiglu.reference import swiglu
from npu_kernels.txn import Write
from npu_kernels.txn.geometry import Place
from npu_kernels.txn.sites import apply, find
from npu_kernels.xclbin import write, write_all
from tests.kernels import swiglu_tiles
from tests.kernels.host import Array, needs_compiler
from tests.kernels.npu import IDENTITY, Npu, Package

N, TILES = 256, 8
PARAMETERS = {"n": N, "tiles": TILES}


@pytest.fixture
def package(tmp_path: Path) -> Package:
    image = Simulated("tests.kernels.swiglu_tiles", PARAMETERS).image()
    path = tmp_path / "design.xclbin"
    path.write_bytes(write(image, IDENTITY, columns=8))
    return Package(path, stream(record_of(swiglu_tiles, PARAMETERS)))


@needs_compiler
def test_a_design_runs_as_a_package(machine: fakexrt.Machine, package: Package) -> None:
    npu = Npu(fakexrt, package)
    rng = np.random.default_rng(0)
    for _ in range(2):
        gate, up = (rng.normal(0, 2, N * TILES).astype(np.float32) for _ in range(2))
        buffers = [npu.buffer(gate.tobytes()), npu.buffer(up.tobytes()), npu.buffer(gate.nbytes)]
        run = npu.run(*buffers)
        run.start()
        run.wait2()
        found = np.frombuffer(npu.seen(buffers[2]), np.float32)
        np.testing.assert_allclose(found, swiglu(gate, up), rtol=1e-4, atol=1e-5)
    assert machine.counts.bytes_read == 2 * 2 * 4 * N * TILES
    assert machine.counts.configurations == 1


@needs_compiler
def test_a_fault_of_the_design_comes_through(machine: fakexrt.Machine, package: Package) -> None:
    """And what it leaves of the array is not used again."""
    npu = Npu(fakexrt, package)
    wrong = npu.stream([Write(Place(5, 2, 0x400).address, 1)])
    run = npu.run(instructions=wrong)
    with pytest.raises(DesignFault, match="no-parameter"):
        run.start()
    with pytest.raises(Misuse, match="died"):
        run.start()


@needs_compiler
def test_a_context_runs_several_kernels(machine: fakexrt.Machine, tmp_path: Path) -> None:
    """Each by its own image; what the array held is lost as they take turns."""
    tiles = (2, 8)
    images = {
        f"swiglu_{n}": Simulated("tests.kernels.swiglu_tiles", PARAMETERS | {"tiles": n}).image()
        for n in tiles
    }
    path = tmp_path / "design.xclbin"
    path.write_bytes(write_all(images, IDENTITY, columns=8))
    npu = Npu(fakexrt, Package(path, np.zeros(4, np.uint32)), kernel="swiglu_2")
    rng = np.random.default_rng(0)
    for n in (*tiles, *tiles):
        npu.kernel = fakexrt.kernel(npu.context, f"swiglu_{n}")
        instructions = npu.stream(stream(record_of(swiglu_tiles, PARAMETERS | {"tiles": n})))
        gate, up = (rng.normal(0, 2, N * n).astype(np.float32) for _ in range(2))
        buffers = [npu.buffer(gate.tobytes()), npu.buffer(up.tobytes()), npu.buffer(gate.nbytes)]
        run = npu.run(*buffers, instructions=instructions)
        run.start()
        run.wait2()
        found = np.frombuffer(npu.seen(buffers[2]), np.float32)
        np.testing.assert_allclose(found, swiglu(gate, up), rtol=1e-4, atol=1e-5)
    assert machine.counts.configurations == 4


@needs_compiler
def test_an_array_that_starves_names_who_waits(package: Package) -> None:
    array = configure(Simulated("tests.kernels.swiglu_tiles", PARAMETERS))
    array.write(0, 0, np.zeros(N, np.uint32))
    assert len(array.read(0, 0, N)) == 0
    assert "up" in array.standstill()
    array.close()


@needs_compiler
def test_rows_stay_in_their_buffer(machine: fakexrt.Machine, tmp_path: Path) -> None:
    """Three tokens through attention: each sees those before it, by words that are patched."""
    heads, kv_heads, width, room, rotary, scale = 8, 2, 32, 64, 32, 0.2
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "W": width, "R": rotary, "C": room}
    parameters = {**sizes, "SCALE": bits_of(scale), "WINDOW": 0}
    path = tmp_path / "design.xclbin"
    image = Simulated(design.__name__, parameters).image()
    path.write_bytes(write(image, IDENTITY, columns=8))
    first = {**parameters, "block": 0, "rounds": 1}
    seen = {at: stream(record_of(design, {**first, "position": at})) for at in (0, 1, 63)}
    npu = Npu(fakexrt, Package(path, seen[0]))
    rng = np.random.default_rng(1)
    cos, sin = (f(rng.normal(0, 1, (room, rotary // 2))) for f in (np.cos, np.sin))
    angles = npu.buffer(reference.angles(cos, sin).tobytes())
    rows = npu.buffer(bytes(4 * width * kv_heads * room))
    keys: list[Array] = []
    values: list[Array] = []
    for position in range(3):
        qkv = rng.normal(0, 1, (heads + 2 * kv_heads, width)).astype(np.float32)
        given, y = npu.buffer(qkv.tobytes()), npu.buffer(4 * heads * width)
        words = npu.stream(apply(seen[0], find(seen), position))
        run = npu.run(given, angles, rows, y, instructions=words)
        run.start()
        run.wait2()
        turned = reference.rope(qkv.astype(np.float64), cos[position], sin[position])
        keys.append(turned[heads : heads + kv_heads])
        values.append(qkv[heads + kv_heads :])
        found = np.frombuffer(npu.seen(y), np.float32).reshape(heads, width)
        for head in range(heads):
            past = [np.stack(each)[:, head // (heads // kv_heads)] for each in (keys, values)]
            wanted = reference.attention(turned[head : head + 1], *past, scale)[0]
            np.testing.assert_allclose(found[head], wanted, atol=0.02)  # rows are bfloat16
    assert machine.counts.configurations == 1
