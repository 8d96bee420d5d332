"""aie_host: the header is as strict as AIE2P, and what traps there traps here."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npu_kernels.aie_host import CompileFault, HostKernel, KernelFault, aligned, compile_kernel
from npu_kernels.aie_host.compile import fills_stacks
from npu_kernels.bf16 import from_bits, to_bits
from tests.kernels.host import SANITIZERS, Array, held, needs_compiler, unwritten

pytestmark = needs_compiler
PROBE = Path(__file__).parent / "probe.cc"
FLOOR, CEIL, POSITIVE, NEGATIVE, AWAY, TO_ZERO, EVEN, ODD = MODES = range(8)
HALVES: dict[int, Callable[[float], float]] = {  # where x.5 goes
    FLOOR: np.floor,
    CEIL: np.ceil,
    POSITIVE: lambda x: np.floor(x + 0.5),
    NEGATIVE: lambda x: np.ceil(x - 0.5),
    AWAY: lambda x: np.sign(x) * np.floor(abs(x) + 0.5),
    TO_ZERO: lambda x: np.sign(x) * np.ceil(abs(x) - 0.5),
    EVEN: np.rint,
    ODD: lambda x: (
        x if x % 1 == 0 else float(np.rint(x + 1) - 1) if abs(x) % 1 == 0.5 else np.rint(x)
    ),
}


@pytest.fixture(scope="module", params=SANITIZERS)
def kernel(request: pytest.FixtureRequest) -> HostKernel:
    return compile_kernel(PROBE, sanitize=request.param)


def probe(kernel: HostKernel, which: int, values: Array, mode: int = -1, number: int = 0) -> Array:
    out = aligned(96, np.float32)
    kernel.call("probe", held(values), out, which, mode, number)
    return out


def lanes(values: list[float]) -> Array:
    return np.resize(np.array(values, np.float32), 64)


@pytest.mark.parametrize("mode", MODES)
def test_bfloat16_rounds_by_the_mode(kernel: HostKernel, mode: int) -> None:
    """Last places of 1 to 2, at, below and above halves, of both signs."""
    parts = np.array([0, 1e-4, 0.25, 0.5, 0.5001, 0.75, 0.9999, 1, 1.5, 2.5, 3.5, 127.5])
    steps = np.concatenate([parts, -parts])
    values = np.where(steps < 0, -1.0, 1.0) + steps / 128
    got = from_bits(probe(kernel, 0, lanes(list(values)), mode).view(np.uint16)[: len(steps)])
    exact = lanes(list(values))[: len(steps)].astype(np.float64) * 128
    np.testing.assert_array_equal(got * 128, [HALVES[mode](each) for each in exact])


def test_down_unless_a_kernel_says_otherwise(kernel: HostKernel) -> None:
    """The mode is the default again at each call, for a kernel must not lean on the last one."""
    value = [1 + 2**-8 + 2**-9, -1 - 2**-9]
    assert from_bits(probe(kernel, 0, lanes(value), EVEN).view(np.uint16)[0:1]) == 1 + 2**-7
    down = from_bits(probe(kernel, 0, lanes(value)).view(np.uint16)[:2])
    np.testing.assert_array_equal(down, [1, -1 - 2**-7])
    assert probe(kernel, 14, lanes([0])).view(np.int32)[0] == FLOOR


def test_infinities_and_nans_survive(kernel: HostKernel) -> None:
    for mode in MODES:
        got = from_bits(probe(kernel, 0, lanes([np.inf, -np.inf, np.nan]), mode).view(np.uint16))
        np.testing.assert_array_equal(got[:3], [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("mode", MODES)
def test_integers_shift_by_the_mode(kernel: HostKernel, mode: int) -> None:
    values = np.arange(-32, 32, dtype=np.int32)
    got = probe(kernel, 1, values.view(np.float32), mode, 2).view(np.int16)[:64]
    np.testing.assert_array_equal(got, [HALVES[mode](each / 4) for each in values])
    lanes_down = probe(kernel, 20, values.view(np.float32), mode, 2).view(np.int32)[:64]
    np.testing.assert_array_equal(lanes_down, [HALVES[mode](each / 4) for each in values])
    fixed = probe(kernel, 2, values.astype(np.float32), mode, -2).view(np.int32)[:64]
    np.testing.assert_array_equal(fixed, [HALVES[mode](each / 4) for each in values])


def test_saturation(kernel: HostKernel) -> None:
    values = np.resize(np.array([40000, -40000, 32767, -32768], np.int32), 64).view(np.float32)
    wanted = [[-25536, 25536, 32767, -32768], [32767, -32768, 32767, -32768],
              [32767, -32767, 32767, -32767]]  # fmt: skip
    for saturation in range(3):
        got = probe(kernel, 1, values, number=saturation << 8).view(np.int16)[:4]
        assert got.tolist() == wanted[saturation]


def test_what_does_not_fit_an_integer_traps(kernel: HostKernel) -> None:
    with pytest.raises(KernelFault, match="does not fit 32 bits"):
        probe(kernel, 2, lanes([3e9]))


def test_bfp16_shares_the_largest_exponent(kernel: HostKernel) -> None:
    values = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    values[:8] = [1, -1, 1.99, -1.99, 2**-6, -(2**-7), 0, 2**-7]
    for mode, cut in ((-1, np.floor), (EVEN, np.rint)):
        out = probe(kernel, 3, values, mode)
        steps = np.exp2(np.floor(np.log2(np.abs(values.reshape(8, 8)).max(axis=1))) - 6)
        wanted = np.minimum(cut(values.reshape(8, 8) / steps[:, None]), 127) * steps[:, None]
        np.testing.assert_array_equal(out[:64].reshape(8, 8), wanted)
        stored = out[64:].view(np.uint8)[:72].reshape(8, 9)
        np.testing.assert_array_equal(stored[:, 0], np.log2(steps) + 6 + 127)
        mantissas = stored[:, 1:].astype(np.uint8).view(np.int8)
        np.testing.assert_array_equal(mantissas * steps[:, None], wanted)


@pytest.mark.parametrize(
    ("which", "shape", "left", "right"),
    [
        (5, (4, 8, 8), "bf16", "bf16"),
        (6, (8, 8, 8), "bf16", "bf16"),
        (7, (8, 8, 8), np.int8, np.int8),
        (8, (4, 8, 8), np.int16, np.uint8),
        (9, (4, 8, 8), np.int16, np.int8),
        (10, (4, 4, 8), np.int16, np.int16),
    ],
)
def test_mmul_is_a_product_of_matrices(
    kernel: HostKernel, which: int, shape: tuple[int, int, int], left: object, right: object
) -> None:
    """Twice the product: mul, then mac. B stands behind A, in places of A's size."""
    m, k, n = shape
    random = np.random.default_rng(which)
    if left == "bf16":
        parts = [from_bits(to_bits(random.standard_normal(s))) for s in (m * k, k * n)]
        raw = np.concatenate([to_bits(each) for each in parts])
    else:
        limits = [np.iinfo(each) for each in (left, right)]  # type: ignore[arg-type]
        parts = [
            random.integers(each.min, each.max + 1, count).astype(each.dtype)
            for each, count in zip(limits, (m * k, k * n), strict=True)
        ]
        raw = np.concatenate([each.view(np.uint8) for each in parts])
    values = np.zeros(128, np.float32)
    values.view(np.uint8)[: raw.nbytes] = raw.view(np.uint8)
    a, b = (each.astype(np.float64) for each in parts)
    wanted = 2 * a.reshape(m, k) @ b.reshape(k, n)
    out = probe(kernel, which, values)[: m * n]
    if left == "bf16":
        np.testing.assert_allclose(out.reshape(m, n), wanted, rtol=1e-5, atol=1e-5)
    elif np.abs(wanted).max() < 2**31:
        np.testing.assert_array_equal(out.view(np.int32).reshape(m, n), wanted)
    else:
        wrapped = (wanted.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        np.testing.assert_array_equal(out.view(np.int32).reshape(m, n), wrapped)


def test_coarse_intrinsics_are_coarse(kernel: HostKernel) -> None:
    """Each lane is 1 % off: a kernel that trusts one of them fails."""
    x = np.linspace(0.5, 4, 16).astype(np.float32)
    out = probe(kernel, 4, np.resize(x, 64), EVEN)
    halves = from_bits(out[32:].view(np.uint16))
    for got, exact in [
        (out[:16], 1 / x),
        (out[16:32], 1 / np.sqrt(x)),
        (halves[:16], np.exp2(x)),
        (halves[32:48], np.tanh(x)),
    ]:
        off = np.abs(got / exact - 1)
        assert off.min() > 0.005
        assert off.max() < 0.015


def test_what_kernels_share_is_not(kernel: HostKernel) -> None:
    x = np.linspace(0.01, 20, 16).astype(np.float32)
    out, exact = probe(kernel, 19, np.resize(x, 64), EVEN), x.astype(np.float64)
    wanted = [np.exp(exact), 1 / exact, 1 / np.sqrt(exact), 1 / (1 + np.exp(-exact))]
    np.testing.assert_allclose(out[:64], np.concatenate(wanted), rtol=5e-5)


def test_denormals_are_zero(kernel: HostKernel) -> None:
    values = np.zeros(64, np.float32)
    values.view(np.uint16)[:16] = to_bits(np.full(16, 2.0**-65, np.float32))
    np.testing.assert_array_equal(probe(kernel, 16, values)[:16], 0)
    assert np.float32(2**-65) ** 2 != 0  # and are not once it has returned


def test_lanes_move(kernel: HostKernel) -> None:
    values = np.arange(64, dtype=np.int32).view(np.float32)
    one, two = (probe(kernel, 18, values, number=step).view(np.int32) for step in (1, 2))
    assert one[:16].tolist() == list(range(0, 32, 2))
    assert two[:6].tolist() == [0, 1, 4, 5, 8, 9]
    assert one[16:20].tolist() == [0, 16, 1, 17]
    assert two[16:22].tolist() == [0, 1, 16, 17, 2, 3]
    assert one[32:36].tolist() == [0, 8, 1, 9]
    assert two[48:64].tolist() == [*range(2, 16), 0, 1]


@pytest.mark.parametrize(
    ("which", "number", "says"),
    [
        (11, 1, "not aligned to 64"),
        (12, 0, "not aligned to 128"),
        (15, 16, "lane or part 16 of 16"),
        (17, 0, "nobody wrote"),
    ],
)
def test_what_goes_wrong_quietly_on_a_core_traps(
    kernel: HostKernel, which: int, number: int, says: str
) -> None:
    if which == 17 and not fills_stacks():
        pytest.skip("g++ before 12 leaves stacks as they are")
    with pytest.raises(KernelFault, match=says):
        probe(kernel, which, lanes([1]), number=number)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_reads_of_what_nobody_wrote_trap(kernel: HostKernel, dtype: type) -> None:
    values, out = unwritten(64), aligned(96, np.float32)
    for written in (0, 32, 60):
        values.view(dtype)[: written * 4 // np.dtype(dtype).itemsize] = 1
        with pytest.raises(KernelFault, match="nobody wrote"):
            kernel.call("probe", values, out, 11, -1, 48)
    values[:] = 1
    kernel.call("probe", values, out, 11, -1, 48)


@pytest.mark.parametrize("place", [-1, 96, 100])
def test_writes_beyond_a_buffer_are_found(kernel: HostKernel, place: int) -> None:
    with pytest.raises(
        KernelFault, match=r"argument 1: wrote at byte|heap-buffer-overflow|use-after-poison"
    ):
        probe(kernel, 13, lanes([0]), number=place)


def test_a_faulted_call_changes_nothing(kernel: HostKernel) -> None:
    out = aligned(96, np.float32)
    with pytest.raises(KernelFault):
        kernel.call("probe", held(lanes([0])), out, 13, -1, 96)
    assert not out.any()


def test_arguments_are_checked_before_the_kernel_runs(kernel: HostKernel) -> None:
    values, out = held(lanes([0])), aligned(96, np.float32)
    for wrong, says in [
        ((values, out, 0, 0), "takes 5 arguments"),
        ((values, 0, 0, 0, 0), "argument 1: an array belongs here"),
        ((values, out, out, 0, 0), "argument 2: an int belongs here"),
        ((values[1:], out, 0, 0, 0), "argument 0: not aligned to 64"),
        ((values[::2], out, 0, 0, 0), "argument 0: not contiguous"),
        ((values, out, 0, 0, 2**31), "not an int32"),
    ]:
        with pytest.raises(KernelFault, match=says):
            kernel.call("probe", *wrong)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("aie::mul(aie::load_v<16>(x), aie::load_v<16>(x))", "no product of floats"),
        ("aie::reduce_add(aie::load_v<16>(x)) * 2.0f", "use of deleted function"),
        ("aie::mmul<4, 8, 2, bfloat16, bfloat16>()", "no mmul of this shape"),
        ("aie::bit_and(15, aie::zeros<uint8, 64>())", "no matching function"),
        ("aie::max(aie::load_v<16>(x), 0.0)", "no matching function"),
    ],
)
def test_what_aie2p_lacks_does_not_compile(tmp_path: Path, body: str, says: str) -> None:
    source = tmp_path / "wrong.cc"
    source.write_text(
        f'#include <aie_api/aie.hpp>\nextern "C" void wrong(const float *x) {{ (void)({body}); }}\n'
    )
    with pytest.raises(CompileFault, match=says):
        compile_kernel(source)
