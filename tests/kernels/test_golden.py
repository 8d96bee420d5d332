"""Golden vectors: what a self-test expects is what designs compute, and nothing else passes."""

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from flm.devices.xrt import selftest
from flm.devices.xrt.build import ensure
from flm.devices.xrt.designs import shaped
from flm.devices.xrt.package import Package, Wanted
from flm.devices.xrt.toolchains import Simulator
from npu_kernels import fakexrt
from npu_kernels.bf16 import bits_of
from npu_kernels.golden import Expected, closeness, golden
from tests.kernels.host import needs_compiler

EPSILON = bits_of(1e-5)
# Of each design, parameters that a simulator is done with at once.
SMALL = {
    "rms_norm": {"N": 64, "HEADS": 2, "T": 3, "ROW": 192, "EPSILON": EPSILON},
    "add_rms_norm": {"N": 64, "EPSILON": EPSILON},
    "residual_sum": {"N": 64, "T": 3},
    "swiglu": {"N": 128, "T": 3, "ROW": 256},
    "qlinear": {"N": 64, "K": 288},
    "qlinear8": {"N": 64, "K": 288},
    "qlinear8_by16": {"N": 64, "K": 288},
    "lm_head": {"N": 300, "K": 288, "BITS": 8, "BLOCK": 16},
    "attention": {
        "HEADS": 4,
        "KV_HEADS": 2,
        "W": 32,
        "R": 16,
        "C": 128,
        "SCALE": bits_of(0.2),
        "WINDOW": 50,
    },
    "flash_attention": {
        "T": 8,
        "HEADS": 8,
        "KV_HEADS": 2,
        "W": 32,
        "C": 64,
        "SCALE": bits_of(0.2),
    },
    "rotary": {"T": 32, "HEADS": 4, "KV_HEADS": 2, "W": 32, "R": 16, "C": 64},
    "causal_conv": {"T": 8, "N": 128, "ROW": 192, "TAPS": 4, "SILU": 1},
    "gated_delta": {"KH": 2, "H": 4, "W": 32, "SCALE": bits_of(0.2)},
    "gated_rms_norm": {"HEADS": 6, "W": 64, "EPSILON": EPSILON},
    "gate": {"N": 64, "T": 2, "ROW": 128},
    "qgemm": {"T": 8, "N": 128, "K": 288},
    "qgemm8": {"T": 8, "N": 128, "K": 288},
    "qgemm8_by16": {"T": 8, "N": 128, "K": 288},
    "gated_delta_chunk": {"KH": 2, "H": 4, "W": 32, "SCALE": bits_of(0.25)},
}
DESIGNS = {each.wanted.design: each.wanted for each in shaped()}


@needs_compiler
@pytest.mark.parametrize("design", DESIGNS)
def test_the_simulator_passes_the_self_test(
    design: str, tmp_path: Path, machine: fakexrt.Machine
) -> None:
    wanted = Wanted(DESIGNS[design].folder, design, SMALL[design])
    package = ensure([wanted], tmp_path, Simulator())
    outcome = selftest.tested(fakexrt, package, package.kernels[0], runs=0)
    assert outcome.said == ""
    assert outcome.errors
    assert max(outcome.errors.values()) < 2**-7


@pytest.mark.parametrize("design", DESIGNS)
def test_vectors_come_from_their_seed(design: str) -> None:
    folder = DESIGNS[design].folder
    one, two = (golden(folder, design, SMALL[design]) for _ in range(2))
    other = golden(folder, design, SMALL[design], seed=6)
    for a, b in zip(one.before, two.before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(one.before, other.before, strict=True))


@pytest.mark.parametrize("spoil", [1.0001, float("nan"), -1.0])
def test_what_is_wrong_does_not_pass(spoil: float) -> None:
    exact = np.random.default_rng(1).standard_normal(64)
    found = exact.astype(np.float32)
    expected = Expected("y", exact)
    assert closeness("rms_norm", expected, found).fine
    found[np.abs(exact).argmax()] *= spoil
    assert not closeness("rms_norm", expected, found).fine


@pytest.fixture
def package(tmp_path: Path) -> Package:
    wanted = Wanted("rms_norm", "rms_norm", SMALL["rms_norm"])
    return ensure([wanted], tmp_path, Simulator())


@needs_compiler
def test_each_kernel_is_tested_in_a_process_of_its_own(package: Package) -> None:
    (outcome,) = selftest.self_test(package, "npu-sim")
    assert (outcome.fine, outcome.said) == (True, "")
    assert outcome.moved_bytes == sum(argument.nbytes for argument in package.kernels[0].arguments)


@pytest.mark.parametrize(
    ("dies", "said", "patience_s"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "signal 11", 60.0),
        ("raise SystemExit('no such device')", "no such device", 60.0),
        ("import signal; signal.pause()", "no end within", 0.2),
    ],
)
def test_a_kernel_that_takes_its_process_along(
    dies: str,
    said: str,
    patience_s: float,
    package: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{dies}\n")
    python.chmod(0o755)
    monkeypatch.setattr(selftest.sys, "executable", str(python))
    monkeypatch.setattr(selftest, "PATIENCE_S", patience_s)
    (outcome,) = selftest.self_test(package, "npu-sim")
    assert not outcome.fine
    assert said in outcome.said


@needs_compiler
def test_the_report_can_be_posted(
    package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flm.cli.app import run

    for name in ("report.md", "report.json"):
        words = ["kernels", "selftest", str(package.folder), "--device", "npu-sim"]
        assert run([*words, "--report", str(tmp_path / name)]) == 0
    assert "fine" in capsys.readouterr().out
    said = json.loads((tmp_path / "report.json").read_text())
    assert said["kernels"][0]["fine"]
    assert said["packages"][0]["kind"] == "simulated"
    assert "machine" in said
    assert "| rms_norm" in (tmp_path / "report.md").read_text()
