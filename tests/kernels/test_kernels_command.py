"""flm kernels: what there is, and what is wrong with it, by the rule's name."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from flm.cli.app import run
from flm.devices.xrt import designs
from flm.devices.xrt.build import build
from flm.devices.xrt.designs import Shaped, faults, shaped
from flm.devices.xrt.package import Wanted
from flm.devices.xrt.toolchains import Simulator
from npu_kernels.bf16 import bits_of

NORM = {"N": 64, "HEADS": 1, "T": 1, "ROW": 64, "EPSILON": 0}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLM_MODEL_PATH", str(tmp_path))
    return tmp_path


def test_a_sound_design_has_no_faults() -> None:
    assert faults(Wanted("rms_norm", "rms_norm", NORM)) == ()


@pytest.mark.parametrize(
    ("width", "rule"), [(40, "l1-multiple"), (16, "transfer-short"), (8192, "l1-data")]
)
def test_faults_have_their_rules_names(
    width: int, rule: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = Wanted("rms_norm", "rms_norm", {**NORM, "N": width})
    monkeypatch.setattr(designs, "shaped", lambda: iter([Shaped("tiny", ("RMSNorm",), wanted)]))
    assert run(["kernels", "check"]) == 1
    assert rule in capsys.readouterr().out


def test_every_design_is_asked_for_by_some_model() -> None:
    assert {each.model for each in shaped()} >= {"llama3.2:1b", "qwen3.5:4b"}


def test_the_list_shows_designs_and_packages(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "list"]) == 0
    assert "No package is built" in capsys.readouterr().out
    wanted = Wanted("rms_norm", "rms_norm", NORM)
    built = build([wanted], home / "models" / "Some" / "bundle" / "kernels", Simulator())
    assert run(["kernels", "list", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"rms_norm", "gated_delta"} <= {each["design"] for each in said["designs"]}
    (package,) = said["packages"]
    assert (package["folder"], package["kind"]) == (str(built), "simulated")
    assert package["kernels"] == [str(wanted)]


def test_a_self_test_needs_a_package_and_a_device(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "selftest", "smollm2:135m", "--device", "npu-sim"]) == 1
    assert "flm kernels build smollm2:135m --simulate" in capsys.readouterr().err
    assert run(["kernels", "selftest", "smollm2:135m", "--device", "cpu"]) == 1
    assert "--device npu" in capsys.readouterr().err


def test_parameters_that_are_floats_are_shown_as_such() -> None:
    wanted = Wanted("rms_norm", "rms_norm", {"N": 64, "EPSILON": bits_of(1e-5)})
    assert str(wanted) == "rms_norm with EPSILON 1e-05, N 64"


def test_without_mlir_aie_the_simulator_is_offered(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "selftest", "smollm2:135m"]) == 1
    assert "flm kernels build smollm2:135m" in capsys.readouterr().err
    if not find_spec("aie"):
        assert run(["kernels", "build", "smollm2:135m"]) == 1
        assert "--simulate" in capsys.readouterr().err
