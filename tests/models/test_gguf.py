"""Every block type is split exactly, and nothing that a hostile file says is believed."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.errors import BadModelFile, FlmError, UnsupportedModel
from flm.graph.weights.gguf import GgufFile
from flm.graph.weights.gguf_types import BLOCK_TYPES
from tests.models.gguf_writer import tiny_llama, write_gguf


def reference(name: str, block: bytes) -> list[float]:
    """One block's weights by ggml's scalar rules, number by number."""
    half = lambda at: float(np.frombuffer(block[at : at + 2], np.float16)[0])  # noqa: E731
    if name == "Q8_0":
        return [half(0) * struct.unpack_from("b", block, 2 + i)[0] for i in range(32)]
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        five, minimum = name[1] == "5", name.endswith("_1")
        at = 4 if minimum else 2
        high = struct.unpack_from("<I", block, at)[0] if five else 0
        nibbles = block[at + 4 * five :]
        codes = [nibbles[i] & 15 for i in range(16)] + [nibbles[i] >> 4 for i in range(16)]
        codes = [code | ((high >> i) & 1) << 4 for i, code in enumerate(codes)]
        if minimum:
            return [half(0) * code + half(2) for code in codes]
        return [half(0) * (code - (16 if five else 8)) for code in codes]
    if name == "MXFP4":
        values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        codes = [block[1 + i % 16] >> 4 * (i // 16) & 15 for i in range(32)]
        return [2.0 ** (block[0] - 127) * values[c & 7] * (-1 if c & 8 else 1) for c in codes]
    if name == "Q6_K":
        weights = []
        for i in range(256):
            part, quarter, column = i // 128, i % 128 // 32, i % 32
            low = block[64 * part + 32 * (quarter % 2) + column] >> 4 * (quarter // 2) & 15
            two = block[128 + 32 * part + column] >> 2 * quarter & 3
            scale = struct.unpack_from("b", block, 192 + i // 16)[0]
            weights.append(half(208) * scale * ((low | two << 4) - 32))
        return weights
    if name in ("IQ4_NL", "IQ4_XS"):
        values = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
        weights = []
        for run in range(1 if name == "IQ4_NL" else 8):
            scale, at = half(0), 2
            if name == "IQ4_XS":
                high = struct.unpack_from("<H", block, 2)[0] >> 2 * run & 3
                scale *= (block[4 + run // 2] >> 4 * (run % 2) & 15 | high << 4) - 32
                at = 8 + 16 * run
            codes = [block[at + i % 16] >> 4 * (i // 16) & 15 for i in range(32)]
            weights += [scale * values[code] for code in codes]
        return weights
    if name in ("Q2_K", "Q3_K"):
        weights = []
        for i in range(256):
            at, j = 32 * (i // 128) + i % 32, i // 16
            two = block[(16 if name == "Q2_K" else 32) + at] >> 2 * (i % 128 // 32) & 3
            if name == "Q2_K":
                weights.append(half(80) * (block[j] & 15) * two - half(82) * (block[j] >> 4))
                continue
            six = block[96 + j % 8] >> 4 * (j // 8) & 15
            six |= (block[104 + j % 4] >> 2 * (j // 4) & 3) << 4
            signed = two - (0 if block[i % 32] >> i // 32 & 1 else 4)
            weights.append(half(108) * (six - 32) * signed)
        return weights
    weights = []
    for i in range(256):
        j, s = i // 32, block[4:16]
        scale = s[j] & 63 if j < 4 else (s[j + 4] & 15) | s[j - 4] >> 6 << 4
        low = s[j + 4] & 63 if j < 4 else s[j + 4] >> 4 | s[j] >> 6 << 4
        nibbles = block[48 if name == "Q5_K" else 16 :]
        code = nibbles[32 * (j // 2) + i % 32] >> 4 * (j % 2) & 15
        if name == "Q5_K":
            code |= (block[16 + i % 32] >> j & 1) << 4
        weights.append(half(0) * scale * code - half(2) * low)
    return weights


@pytest.mark.parametrize("type", BLOCK_TYPES.values(), ids=lambda type: type.name)
def test_blocks_hold_exactly_the_numbers_of_the_file(type) -> None:
    random = np.random.default_rng(7)
    raw = random.integers(0, 256, (6, 3, type.bytes), dtype=np.uint8)
    at = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}.get(type.name, 0)
    size = 4 if type.format.minimum else 2
    halves = random.normal(size=(6, 3, 2)).astype(np.float16).view(np.uint8)
    raw[..., at : at + size] = halves[..., :size]
    if type.name == "MXFP4":
        raw[..., 0] = random.integers(100, 140, (6, 3))  # of all exponents, those of weights
    blocks = type.blocks(raw.reshape(6, -1))
    wanted = [[w for block in row for w in reference(type.name, block.tobytes())] for row in raw]
    np.testing.assert_allclose(blocks.dense(), np.array(wanted), rtol=3e-7, atol=1e-5)
    assert blocks.codes.max() < 1 << type.format.bits


def test_a_well_formed_file_is_read(tmp_path: Path) -> None:
    file = GgufFile(tiny_llama(tmp_path / "m.gguf"))
    assert file.text("general.architecture") == "llama"
    assert file.matrix("blk.1.ffn_gate.weight").shape == (64, 32)
    assert "blk.2.ffn_gate.weight" not in file


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    whole = tiny_llama(tmp_path / "whole.gguf").read_bytes()
    for size in [*range(0, 2000, 97), len(whole) // 2, len(whole) - 400]:
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:size])
        with pytest.raises(BadModelFile, match=r"cut\.gguf"):
            GgufFile(path)


@pytest.mark.parametrize(
    ("where", "count"),
    [(8, 2**63), (8, 2**40), (16, 2**64 - 1), (24, 2**62), (16, 70_000)],
    ids=["tensors", "many tensors", "keys", "a string", "many keys"],
)
def test_lengths_that_overflow_are_refused(tmp_path: Path, where: int, count: int) -> None:
    data = bytearray(tiny_llama(tmp_path / "m.gguf").read_bytes())
    struct.pack_into("<Q", data, where, count)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(BadModelFile):
        GgufFile(tmp_path / "m.gguf")


def test_an_unknown_quantisation_is_named_with_what_is_read_instead(tmp_path: Path) -> None:
    rows = np.zeros((2, 256), np.uint8)
    path = write_gguf(tmp_path / "m.gguf", {}, {"token_embd.weight": (rows, 18)})
    with pytest.raises(UnsupportedModel, match="IQ3_XXS") as caught:
        GgufFile(path)
    assert "Q4_K_M" in caught.value.fix


def test_what_is_not_a_gguf_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_bytes(b"<!DOCTYPE html><html>not found</html>")
    for path in tmp_path.iterdir():
        with pytest.raises(BadModelFile, match=path.name):
            GgufFile(path)
    with pytest.raises(BadModelFile):
        GgufFile(tmp_path / "missing.gguf")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_ends_in_one_clear_error_or_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    raw = bytearray(tiny_llama(folder / "m.gguf").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(raw), 3000) - 9))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(patch)] = patch
    (folder / "m.gguf").write_bytes(raw)
    with contextlib.suppress(FlmError):
        file = GgufFile(folder / "m.gguf")
        for name, info in file.tensors.items():
            if len(info.shape) == 2:
                file.matrix(name).read_dense(np.arange(1))
