"""A package holds what its manifest says and runs as its designs would; any other is refused."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flm.devices.xrt import build as building
from flm.devices.xrt import sources, toolchains
from flm.devices.xrt.build import build, ensure, sha256
from flm.devices.xrt.load import load
from flm.devices.xrt.package import MANIFEST, XCLBIN, Package, Wanted
from flm.devices.xrt.toolchains import MlirAie, Simulator
from flm.errors import BadKernelPackage, DeviceUnavailable
from npu_kernels import fakexrt
from npu_kernels.fakexrt.configuration import record_of
from npu_kernels.iron_sim.stream import stream
from npu_kernels.manifest import Value
from npu_kernels.swiglu.reference import swiglu
from npu_kernels.txn import encode
from npu_kernels.xclbin import read, write_all
from tests.kernels import npu, swiglu_window
from tests.kernels.host import needs_compiler
from tests.kernels.txn_streams import FILLED, copy, fill

N, TILES = 64, 2
WINDOW = Wanted("swiglu", "swiglu_window", {"n": N, "tiles": TILES})
TALLER = Wanted("swiglu", "swiglu_window", {"n": N, "tiles": 2 * TILES})


@pytest.fixture(autouse=True)
def designs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "design_of", lambda wanted: swiglu_window.design())


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return ensure([WINDOW, TALLER, WINDOW], tmp_path, Simulator())


def test_what_is_built_is_loaded(package: Package) -> None:
    assert [entry.name for entry in package.kernels] == [WINDOW.name, TALLER.name]
    entry = package.kernel("swiglu", "swiglu_window", {"tiles": TILES, "n": N})
    assert [argument.nbytes for argument in entry.arguments] == [4 * N * 16] * 3
    assert [argument.direction for argument in entry.arguments] == ["in", "in", "out"]
    assert [(value.name, len(value.sites)) for value in entry.values] == [("start", 3), ("word", 1)]
    assert len(list(package.folder.parent.iterdir())) == 1


def test_a_package_goes_by_its_content(package: Package, tmp_path: Path) -> None:
    assert build([WINDOW, TALLER], tmp_path, Simulator()) == package.folder
    assert build([WINDOW], tmp_path, Simulator()) != package.folder


@pytest.mark.parametrize(("start", "word"), [(0, 3), (1, 3), (9, 77), (14, 1000), (14, 3)])
def test_patched_instructions_are_those_built_at_the_values(
    package: Package, start: int, word: int
) -> None:
    entry = package.kernel("swiglu", "swiglu_window", WINDOW.parameters)
    built = record_of(swiglu_window, {**WINDOW.parameters, "start": start, "word": word})
    np.testing.assert_array_equal(entry.words(start=start, word=word), stream(built))


def test_a_value_out_of_its_bounds_is_not_guessed(package: Package) -> None:
    entry = package.kernel("swiglu", "swiglu_window", WINDOW.parameters)
    with pytest.raises(AssertionError):
        entry.words(start=15, word=3)


@needs_compiler
def test_its_kernels_run_on_the_npu(machine: fakexrt.Machine, package: Package) -> None:
    random = np.random.default_rng(0)
    gate, up = (random.normal(0, 2, 16 * N).astype(np.float32) for _ in range(2))
    opened = npu.Npu(fakexrt, npu.Package(package.xclbin, np.zeros(4, np.uint32)), WINDOW.name)
    buffers = [opened.buffer(data.tobytes()) for data in (gate, up, np.zeros_like(gate))]
    for start in (0, 5, 14):
        entry = package.kernel("swiglu", "swiglu_window", WINDOW.parameters)
        instructions = opened.stream(entry.words(start=start, word=3))
        run = opened.run(*buffers, instructions=instructions)
        run.start()
        run.wait2()
        part = slice(start * N, (start + TILES) * N)
        found = np.frombuffer(opened.seen(buffers[2]), np.float32)[part]
        np.testing.assert_allclose(found, swiglu(gate[part], up[part]), rtol=1e-4, atol=1e-5)


def retold(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A manifest that says something else."""

    def apply(folder: Path) -> None:
        said = json.loads((folder / MANIFEST).read_text())
        change(said)
        (folder / MANIFEST).write_text(json.dumps(said))

    return apply


def cut(name: str, by: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-by])

    return apply


def with_xclbin(make: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Another xclbin, whose hash the manifest has."""

    def apply(folder: Path) -> None:
        data = make((folder / XCLBIN).read_bytes())
        (folder / XCLBIN).write_bytes(data)
        retold(lambda said: said["xclbin"].update(sha256=sha256(data)))(folder)

    return apply


def rewritten(data: bytes, names: Callable[[str], str] = str, columns: int = 8) -> bytes:
    found = read(data)
    images = {names(kernel.name): found.image(kernel) or b"" for kernel in found.kernels}
    return write_all(images, found.uuid, columns=columns)


def with_stream(make: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Any:
    """Other instructions, whose hash the manifest has."""

    def apply(folder: Path) -> None:
        file = folder / f"{WINDOW.name}.insts.bin"
        data = make(np.fromfile(file, np.uint32)).astype("<u4").tobytes()
        file.write_bytes(data)
        changed = {"file": file.name, "sha256": sha256(data)}
        values: dict[str, Any] = {"instructions": changed, "values": []}
        retold(lambda said: said["kernels"][0].update(values))(folder)

    return apply


def moved(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    changed = words.copy()
    changed[0] = changed[0] & ~np.uint32(0xFF << 16) | np.uint32(3 << 16)
    return changed


REFUSALS = {
    "no package": (lambda folder: (folder / MANIFEST).unlink(), "no kernel package"),
    "half a manifest": (cut(MANIFEST, 20), "cannot be read"),
    "another schema": (retold(lambda said: said.update(schema=99)), "schema 99"),
    "another array": (retold(lambda said: said.update(family="npu1")), "for npu1"),
    "compiled": (retold(lambda said: said.update(kind="compiled")), "takes what is simulated"),
    "another toolchain": (
        retold(lambda said: said.update(toolchain={"mlir_aie": "1.3.4"})),
        "made by mlir_aie 1.3.4",
    ),
    "other sources": (retold(lambda said: said["kernels"][0].update(sources="0")), "other sources"),
    "a field is missing": (retold(lambda said: said["kernels"][0].pop("name")), "not whole"),
    "an argument unknown": (
        retold(lambda said: said["kernels"][0]["arguments"][0].update(colour=1)),
        "not whole",
    ),
    "too many arguments": (
        retold(
            lambda said: said["kernels"][0].update(arguments=2 * said["kernels"][0]["arguments"])
        ),
        "takes 5 buffers, its manifest says 6",
    ),
    "truncated xclbin": (cut(XCLBIN, 100), "another hash"),
    "truncated before it was hashed": (with_xclbin(lambda data: data[:-100]), "cut short"),
    "another's xclbin": (
        with_xclbin(lambda data: rewritten(data, lambda name: f"their_{name}")),
        "has no kernel",
    ),
    "another uuid": (retold(lambda said: said["xclbin"].update(uuid="1-2")), "another uuid"),
    "a wider array": (with_xclbin(lambda data: rewritten(data, columns=9)), "wants 9 columns"),
    "no xclbin": (lambda folder: (folder / XCLBIN).unlink(), "cannot be read"),
    "cut instructions": (cut(f"{WINDOW.name}.insts.bin", 4), "another hash"),
    "instructions that end too soon": (with_stream(lambda words: words[:-2]), "breaks a rule"),
    "instructions of another array": (with_stream(moved), "generation 3"),
    "a queue that overflows": (
        with_stream(lambda words: encode([*(o for n in range(5) for o in fill(n, 0, 64)), FILLED])),
        "queue-depth|outstanding",
    ),
    "beyond a buffer": (with_stream(lambda words: encode(copy(16 * N + 64))), "bounds"),
}


@pytest.mark.parametrize(("spoil", "said"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_not_ours_is_refused(
    package: Package, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(package.folder)
    with pytest.raises(BadKernelPackage, match=said) as refused:
        load(package.folder, Simulator())
    assert refused.value.fix


def test_a_kernel_of_another_geometry_is_not_found(package: Package) -> None:
    with pytest.raises(BadKernelPackage, match="tiles 7; it has") as refused:
        package.kernel("swiglu", "swiglu_window", {"n": N, "tiles": 7})
    assert "flm kernels build" in refused.value.fix


def test_a_value_that_enters_no_word_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf(n: int, tiles: int, start: int, word: int) -> Any:
        return import_module("tests.kernels.swiglu_window").build(n, tiles, start, 5)

    monkeypatch.setattr(toolchains, "import_module", lambda name: type("M", (), {"build": deaf}))
    with pytest.raises(BadKernelPackage, match="for word: it changes no word"):
        build([WINDOW], tmp_path, Simulator())
    assert list(tmp_path.iterdir()) == [], "what failed leaves nothing"


def test_values_that_meet_in_one_word_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meeting(n: int, tiles: int, start: int, word: int) -> Any:
        return import_module("tests.kernels.swiglu_window").build(n, tiles, start, word + start)

    monkeypatch.setattr(toolchains, "import_module", lambda name: type("M", (), {"build": meeting}))
    with pytest.raises(BadKernelPackage, match="follows start as well"):
        build([WINDOW], tmp_path, Simulator())


def test_a_crooked_value_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crooked(n: int, tiles: int, start: int, word: int) -> Any:
        return import_module("tests.kernels.swiglu_window").build(n, tiles, start, word**2)

    monkeypatch.setattr(toolchains, "import_module", lambda name: type("M", (), {"build": crooked}))
    with pytest.raises(BadKernelPackage, match="no line"):
        build([WINDOW], tmp_path, Simulator())


def test_values_with_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, and one: a line through all there are, and no line at all."""
    values = (Value("start", "offset", "1"), Value("word", "rtp", "3", "3"))
    narrow = swiglu_window.design(values=values)
    monkeypatch.setattr(building, "design_of", lambda wanted: narrow)
    (entry,) = ensure([WINDOW], tmp_path, Simulator()).kernels
    built = record_of(swiglu_window, {**WINDOW.parameters, "start": 1, "word": 3})
    np.testing.assert_array_equal(entry.words(start=1, word=3), stream(built))
    with pytest.raises(AssertionError):
        entry.words(start=1, word=4)


def test_a_design_without_values_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        building, "design_of", lambda wanted: swiglu_window.design("tests.kernels.swiglu_tiles", ())
    )
    (entry,) = ensure([WINDOW], tmp_path, Simulator()).kernels
    np.testing.assert_array_equal(entry.words(), entry.instructions)


def test_without_the_compilers_the_fix_is_to_install_them(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=r"mlir_aie 1\.4\.2") as refused:
        build([WINDOW], tmp_path, MlirAie())
    assert "pip install" in refused.value.fix


def test_bounds_of_a_value_are_formulas_over_the_parameters() -> None:
    assert Value("rounds", "length", "C // 64", "1").bounds({"C": 256}) == (1, 4)


def test_the_sources_of_a_kernel_are_those_that_its_folder_imports_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As qlinear8's design is qlinear's."""
    for name in ("four", "eight", "include"):
        (tmp_path / name).mkdir()
    (tmp_path / "eight" / "design.py").write_text("from npu_kernels.four.design import product\n")
    monkeypatch.setattr("npu_kernels.__file__", str(tmp_path / "__init__.py"))
    found = []
    for body in ("from npu_kernels import columns\n", "", ""):
        (tmp_path / "four" / "design.py").write_text(body)
        (tmp_path / "columns.py").write_text(f"COLUMNS = {len(found)}\n")
        sources.digest.cache_clear()
        found.append(sources.digest("eight"))
    sources.digest.cache_clear()
    assert found[0] != found[1]
    assert found[1] == found[2], "nobody imports it any more"
