"""Whatever changes a byte of what is kept has a folder of its own."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from flm.core.tensor import MemoryKind
from flm.devices import machine
from flm.graph.bundle import Bundle
from flm.memory.layout import MemoryLayout, MemoryTensor
from flm.prefix.disk.identity import identity_of
from tests.pure.disk import HYBRID, STATELESS, identity


def test_every_field_counts() -> None:
    one = identity(HYBRID)
    assert len(one.digest) == 32
    assert one.digest == identity(HYBRID).digest
    for field in fields(one):
        value = getattr(one, field.name)
        more = ("more",) if isinstance(value, tuple) else 1 if isinstance(value, int) else "more"
        assert replace(one, **{field.name: value + more}).digest != one.digest, field.name
        assert field.name in json.loads(one.json)


def test_a_bundle_is_known_by_its_key_its_text_files_and_its_memory(tmp_path: Path) -> None:
    other = MemoryLayout((*STATELESS.rows, MemoryTensor("x", MemoryKind.STATE, (1,))))
    layouts = {"float32": HYBRID, "float16": other}
    bundle = Bundle(tmp_path, "key", "llama", "LlamaForCausalLM", layouts, 100, 8192)
    seen = set()

    def new(changed: Bundle = bundle, row_dtype: str = "float32", device: str = "cpu") -> bool:
        digest = identity_of(changed, row_dtype, device=device).digest
        known = digest in seen
        seen.add(digest)
        return not known

    assert new()
    assert not new()
    assert new(replace(bundle, key="other"))
    assert new(row_dtype="float16")
    assert new(device="null")
    by_length = replace(bundle, context_length_short=512)
    short = identity_of(by_length, "float32", device="cpu", context_length=512)
    assert short != identity_of(by_length, "float32", device="cpu", context_length=513)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        for text in ("one", "two"):
            (tmp_path / name).write_text(text)
            assert new(), name
    (tmp_path / "weights.bin").write_text("the key knows these")
    assert not new()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu sse2 avx512_vnni avx2 erms", ("avx2", "avx512_vnni")),
        ("Features\t: fp asimd asimddp crc32", ("asimd", "asimddp")),
        ("", ()),
    ],
)
def test_instruction_sets_are_what_the_kernel_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: tuple[str, ...]
) -> None:
    place = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "CPU_INFO", place)
    assert len(machine.instruction_sets()) == 1
    place.write_text(f"processor : 0\n{line}\n\nprocessor : 1\n{line}\n")
    assert machine.instruction_sets()[1:] == expected
