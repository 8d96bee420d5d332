"""A model's kernels: built for what its plan dispatches, at the length it is served with."""

import json
from pathlib import Path

import pytest

from flm.cli.app import run

MODEL = str(Path(__file__).parents[1] / "fixtures" / "llama" / "llama.Q4_K_M.gguf")
LENGTH = ["--ctx-len", "512"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLM_MODEL_PATH", str(tmp_path))
    return tmp_path


def test_a_models_kernels_are_built_and_listed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "build", MODEL, "--simulate", *LENGTH]) == 0
    assert "No kernel of this version has run on an NPU yet" in capsys.readouterr().out
    assert run(["kernels", "list", "--json"]) == 0
    packages = json.loads(capsys.readouterr().out)["packages"]
    assert [package["kind"] for package in packages] == ["simulated"] * 2
    for kernel in ("attention with C 576", "flash_attention with C 576", "rotary with C 576"):
        (found,) = (p for p in packages if any(k.startswith(kernel) for k in p["kernels"]))
        assert any(each.startswith("qgemm") for each in found["kernels"]) == (kernel[0] != "a")


def test_what_would_run_where_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--model", MODEL, *LENGTH]) == 0
    said = capsys.readouterr().out
    assert "decode on the NPU: 6 AddRMSNorm" in said
    assert "QEmbeddingMin" in said.partition("decode on the CPU")[2]
    assert "prefill on the NPU: 6 AddRMSNorm" in said
    assert said.count("MB read by kernels") == 2


def test_without_the_compilers_nothing_is_begun(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", "build", MODEL, *LENGTH]) == 1
    assert "pip install" in capsys.readouterr().err
    assert list(home.iterdir()) == []
