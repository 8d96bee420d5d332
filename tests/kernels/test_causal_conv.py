"""causal_conv: in any parts it is the convolution over all, and only the last tokens stay."""

from pathlib import Path

import numpy as np
import pytest

from npu_kernels import fakexrt
from npu_kernels.causal_conv import design, reference
from npu_kernels.fakexrt import Simulated
from npu_kernels.fakexrt.configuration import record_of
from npu_kernels.iron_sim.stream import stream
from npu_kernels.xclbin import write
from tests.kernels.host import (
    SANITIZERS,
    Array,
    Rig,
    dispatch,
    held,
    needs_compiler,
    spread,
    unwritten,
)
from tests.kernels.npu import IDENTITY, Npu, Package

pytestmark = needs_compiler


def run(rig: Rig, x: Array, weight: Array, tail: Array, silu: bool = True) -> tuple[Array, Array]:
    """x [tokens, channels]."""
    y, following = unwritten(x.shape), unwritten(tail.shape)
    rows, (tokens, channels) = held(np.concatenate([tail, x])), x.shape
    rig("causal_conv", rows, weight, y, following, channels, len(weight), tokens, int(silu))
    return y, following


@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("tokens", [1, 2, 5], ids=lambda count: f"{count} at once")
@pytest.mark.parametrize("taps", [2, 4])
def test_tokens_after_others(sanitize: bool, taps: int, tokens: int) -> None:
    """Also fewer than the tail has."""
    random, rig, n = np.random.default_rng(taps), Rig("causal_conv", sanitize), 48
    weight, tail = spread(random, taps, n), held(np.zeros((taps - 1, n), np.float32))
    for silu in (True, True, False, False, True, False):
        x = spread(random, tokens, n)
        y, wanted = reference.causal_conv(x.astype(np.float64), weight, tail, silu)
        got, tail = run(rig, x, weight, tail, silu)
        rig.check(got, y)
        np.testing.assert_array_equal(tail, wanted)


def test_pack_turns_weights() -> None:
    weight = np.arange(12.0, dtype=np.float32).reshape(4, 1, 3)
    np.testing.assert_array_equal(reference.pack(weight)[1], weight[:, 0, 1])


@pytest.mark.parametrize(
    ("tokens", "channels", "taps"),
    [
        (1, 384, 4),  # six cores
        (1, 2368, 3),  # one, which takes its channels in parts
        (8, 384, 4),
        pytest.param(1, 8192, 4, marks=pytest.mark.slow),
        pytest.param(32, 8192, 4, marks=pytest.mark.slow),
    ],
)
def test_the_design(tokens: int, channels: int, taps: int) -> None:
    """Tokens after others, over a tail that stays where it is."""
    random, rig = np.random.default_rng(channels), Rig("causal_conv")
    weight, tail = spread(random, taps, channels), spread(random, taps - 1, channels)
    for silu in (1, 0):
        x, before = spread(random, tokens, channels), tail.copy()
        y = unwritten(x.shape)
        parameters = {"T": tokens, "N": channels, "ROW": channels, "TAPS": taps, "SILU": silu}
        counters = dispatch(rig, "causal_conv", parameters, [x, weight, tail, y])
        exact, following = reference.causal_conv(x.astype(np.float64), weight, before, bool(silu))
        rig.check(y, exact)
        np.testing.assert_array_equal(tail, following)
        assert counters.bytes_read == 4 * channels * (tokens + 2 * taps - 1)
        assert counters.bytes_written == 4 * channels * (tokens + taps - 1)


def test_the_design_as_a_package(machine: fakexrt.Machine, tmp_path: Path) -> None:
    """The tail stays on the device from run to run."""
    random, rig, channels, taps = np.random.default_rng(5), Rig("causal_conv"), 128, 4
    parameters = {"T": 1, "N": channels, "ROW": channels, "TAPS": taps, "SILU": 1}
    image = Simulated(design.__name__, parameters).image()
    path = tmp_path / "design.xclbin"
    path.write_bytes(write(image, IDENTITY, columns=8))
    npu = Npu(fakexrt, Package(path, stream(record_of(design, parameters))))
    weight, tail = spread(random, taps, channels), spread(random, taps - 1, channels)
    x = npu.buffer(4 * channels)
    others = [npu.buffer(weight.tobytes()), npu.buffer(tail.tobytes()), npu.buffer(4 * channels)]
    run = npu.run(x, *others)
    for _ in range(3):
        token = spread(random, 1, channels)
        x.write(token, 0)
        x.sync(npu.to_device)
        run.start()
        run.wait2()
        exact, tail = reference.causal_conv(token.astype(np.float64), weight, tail)
        rig.check(np.frombuffer(npu.seen(others[2]), np.float32), exact[0])
    np.testing.assert_array_equal(np.frombuffer(npu.seen(others[1]), np.float32), tail.ravel())


@pytest.mark.slow
def test_real_shapes() -> None:
    random, rig = np.random.default_rng(1), Rig("causal_conv")
    shape = rig.manifest.shapes["qwen3.5:4b"]
    x, weight, tail = (spread(random, rows, 8192) for rows in (1, 4, 3))
    parts = [
        run(rig, held(x[:, at]), held(weight[:, at]), held(tail[:, at]))[0]
        for at in (slice(i, i + shape["TILE"]) for i in range(0, shape["N"], shape["TILE"]))
    ]
    wanted = reference.causal_conv(x.astype(np.float64), weight, tail)[0]
    rig.check(np.concatenate(parts, axis=1), wanted)
