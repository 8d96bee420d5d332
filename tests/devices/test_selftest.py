"""What the self-test says of this machine holds for whole graphs."""

from pathlib import Path

import numpy as np
import pytest

from flm.cli.app import run
from flm.devices import selftest
from flm.errors import DeviceUnavailable
from flm.graph.weights.gguf import GgufFile
from tests.models.drive import FIXTURES, Graph

LENGTHS = [40, 17, 63]


@pytest.mark.parametrize("name", ["llama", "qwen35_k4v8"])
def test_a_lone_row_is_alike_where_the_probe_says_so_and_nowhere_else(
    tmp_path: Path, name: str
) -> None:
    source = GgufFile(FIXTURES / name / f"{name}.Q4_K_M.gguf")
    graph = Graph(source, tmp_path, int8_activations=True, lanes=3)
    ids = np.load(FIXTURES / name / "expected.npz")["ids"]
    together = graph.decode(ids, LENGTHS, range(3))
    alone = [graph.decode(ids, LENGTHS, range(lane, lane + 1)) for lane in range(3)]
    assert np.array_equal(np.concatenate(alone), together) == selftest.lone_row_alike()


def test_wrong_numbers_are_noticed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    selftest.self_test()

    def off_by_an_eighth(*args: object, **sizes: object) -> list[selftest.Array]:
        (y,) = multiply(*args, **sizes)
        return [y + np.abs(y).max() / 8]

    multiply = selftest._multiply
    monkeypatch.setattr(selftest, "_multiply", off_by_an_eighth)
    with pytest.raises(DeviceUnavailable, match="MatMulNBits"):
        selftest.self_test()


@pytest.mark.parametrize("alike", [True, False])
def test_validate_says_whether_replies_side_by_side_are_as_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], alike: bool
) -> None:
    monkeypatch.setattr(selftest, "lone_row_alike", lambda: alike)
    assert run(["validate", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert ("bit-equal to replies decoded alone" in said) == alike
    assert ("rounds differently" in said) != alike
