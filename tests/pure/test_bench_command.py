"""flm bench: what is measured, how it is summed up, and where it is written."""

from pathlib import Path

import pytest

from flm.cli.bench import BenchPlan, Measured, csv_path, read_plan, spread, table
from flm.errors import BadSettings


def test_stages_double_up_to_what_fits_longest_first() -> None:
    assert BenchPlan().stages(8192) == [4096, 2048, 1024]
    assert BenchPlan(max_length=32768).stages(8192) == [4096, 2048, 1024]
    assert BenchPlan(max_length=32768).stages(8300) == [8192, 4096, 2048, 1024]
    assert BenchPlan().stages(512) == [480]


def test_a_plan_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"max_length": 2048, "iterations": 2, "text": "Once."}')
    assert read_plan(path) == BenchPlan(2048, 2, "Once.")
    assert read_plan(None) == BenchPlan()


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"max_len": 1}', '{"iterations": 0}', '{"iterations": "2"}', '{"text": ""}'],
)
def test_a_bad_plan_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(BadSettings):
        read_plan(path)


def test_a_table_has_fastflowlms_columns() -> None:
    runs = [Measured(1.0, 1000.0, 50.0), Measured(2.0, 500.0, 40.0)]
    head, _, row = table([(1024, runs)])
    assert [cell.strip() for cell in head.split("|")] == [
        "Context Length",
        "TTFT (s)",
        "Prefill Speed (tok/s)",
        "Decoding Speed (tok/s)",
    ]
    assert [cell.strip() for cell in row.split("|")] == [
        "1,024",
        "1.500 ± 0.707",
        "750.0 ± 353.6",
        "45.0 ± 7.1",
    ]
    assert spread([3.0]) == (3.0, 0.0, 3.0, 3.0)


def test_the_file_is_named_for_model_day_and_device() -> None:
    assert csv_path("smollm2:135m", "cpu").name.startswith("bench_smollm2-135m_")
    assert csv_path("smollm2:135m", "cpu").name.endswith("_cpu.csv")
    assert csv_path("hf:org/repo/a.gguf", "npu").parent == Path()
