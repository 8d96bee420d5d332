"""SmolLM2-135M, the real one, on a simulated NPU: what runs where, and that it answers."""

from dataclasses import replace
from pathlib import Path

import pytest

from flm.cli.app import run
from flm.llm import LLM
from flm.settings import Settings
from tests.conftest import CACHE
from tests.kernels.host import needs_compiler

pytestmark = pytest.mark.slow


def test_only_its_embedding_is_left_to_the_cpu(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLM_MODEL_PATH", str(CACHE / "flm"))
    assert run(["validate", "--model", "smollm2:135m"]) == 0
    said = capsys.readouterr().out
    assert "60 AddRMSNorm, 30 PackedAttention, 1 QLinear, 120 QLinearMin, 1 RMSNorm" in said
    assert "decode on the CPU: 1 QEmbedding\n" in said


@needs_compiler
def test_it_answers_as_on_the_cpu(smollm2: Path) -> None:
    """Its first word is of the prompt's last pass, which the CPU runs; the next is decoded."""
    for device in ("cpu", "npu-sim"):
        settings = replace(
            Settings(),
            model_path=CACHE / "flm",
            device=device,
            ctx_len=256,
            lanes=1,
            prefix_disk_mb=0,
            read_ahead=False,
        )
        with LLM.load("smollm2:135m", settings) as llm:
            assert llm.chat("Say hello.", temperature=0, max_tokens=2).text == "Hello!"
