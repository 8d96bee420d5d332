"""How aiecc is asked for a package: by a stand-in for it, which only keeps what it was told."""

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from uuid import UUID

import numpy as np
import pytest

from flm.devices.xrt import build as building
from flm.devices.xrt.build import build
from flm.devices.xrt.load import load
from flm.devices.xrt.package import COMPILED, Wanted
from flm.devices.xrt.toolchains import MLIR_AIE, PEANO, MlirAie, Simulator
from flm.errors import BadKernelPackage, DeviceUnavailable
from npu_kernels import fakexrt
from npu_kernels.fakexrt import Misuse
from npu_kernels.fakexrt.configuration import record_of
from npu_kernels.iron_sim.stream import stream
from npu_kernels.xclbin import read, write_all
from tests.kernels import swiglu_window
from tests.kernels.npu import Npu, Package

WANTED = [Wanted("swiglu", "swiglu_window", {"n": 64, "tiles": tiles}) for tiles in (1, 2)]
VERSIONS = {"mlir_aie": MLIR_AIE, "llvm-aie": f"{PEANO}.2026011501"}


class Aiecc:
    """Puts a kernel's image beside those of --xclbin-input, and has its streams already."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Sequence[str]]] = []
        design = swiglu_window.design()
        self.streams = {
            f"{wanted.name}.{number}": stream(
                record_of(swiglu_window, {**wanted.parameters, **sample})
            )
            for wanted in WANTED
            for number, sample in enumerate(building._samples(design, wanted.parameters))
        }

    def modules(self) -> dict[str, ModuleType]:
        aiecc = self

        class CompilableDesign:
            def __init__(
                self, generator: object, *, use_cache: bool, aiecc_flags: list[str]
            ) -> None:
                assert callable(generator)
                assert not use_cache, "objects that it finds may be another source's"
                self.flags = aiecc_flags

            def compile(self, xclbin_path: Path, inst_path: Path) -> tuple[Path, Path]:
                aiecc.run(self.flags, xclbin_path, inst_path)
                return xclbin_path, inst_path

        names = ("aie", "aie.iron", "aie.iron.device", "aie.utils", "aie.utils.compile")
        jit = ("aie.utils.compile.jit", "aie.utils.compile.jit.compilabledesign")
        modules = {name: ModuleType(name) for name in (*names, *jit)}
        modules["aie"].iron = modules["aie.iron"]  # type: ignore[attr-defined]
        modules["aie.iron"].set_current_device = lambda device: None  # type: ignore[attr-defined]
        modules["aie.iron.device"].from_name = lambda name, n_cols: name  # type: ignore[attr-defined]
        modules[jit[1]].CompilableDesign = CompilableDesign  # type: ignore[attr-defined]
        return modules

    def run(self, flags: list[str], xclbin: Path, instructions: Path) -> None:
        said = dict(flag.split("=", 1) for flag in flags)
        name = xclbin.parent.name
        self.asked.append((name, flags))
        images = {said.get("--xclbin-kernel-name", "MLIR_AIE"): b"a real PDI"}
        if "--xclbin-input" in said:
            before = read(Path(said["--xclbin-input"]).read_bytes())
            images = {k.name: before.image(k) or b"" for k in before.kernels} | images
        xclbin.write_bytes(write_all(images, UUID(int=len(self.asked)), columns=8))
        self.streams[name].tofile(instructions)


@pytest.fixture
def aiecc(monkeypatch: pytest.MonkeyPatch) -> Aiecc:
    monkeypatch.setattr(building, "design_of", lambda wanted: swiglu_window.design())
    made = Aiecc()
    monkeypatch.setattr(importlib.metadata, "version", VERSIONS.__getitem__)
    for name, module in made.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_a_kernels_xclbin_is_made_on_top_of_the_one_before(aiecc: Aiecc, tmp_path: Path) -> None:
    package = load(build(WANTED, tmp_path, MlirAie()), MlirAie())
    assert package.kind == COMPILED
    assert [entry.name for entry in package.kernels] == [wanted.name for wanted in WANTED]
    first, second = (
        [flags for name, flags in aiecc.asked if name == f"{w.name}.0"] for w in WANTED
    )
    assert f"--xclbin-kernel-name={WANTED[0].name}" in first[0]
    assert {"--xclbin-kernel-id=0x901", "--xclbin-instance-name=K0"} < set(first[0])
    assert {"--xclbin-kernel-id=0x902", "--xclbin-instance-name=K1"} < set(second[0])
    (before,) = (flag for flag in second[0] if flag.startswith("--xclbin-input="))
    assert before.endswith(f"{WANTED[0].name}.0/design.xclbin")
    names = [name for name, _ in aiecc.asked]
    assert len(set(names)) == len(names), "each in a folder of its own"


def test_its_instructions_are_patched_as_a_simulated_ones_are(aiecc: Aiecc, tmp_path: Path) -> None:
    compiled = load(build(WANTED, tmp_path, MlirAie()), MlirAie()).kernels[0]
    at = {"start": 5, "word": 9}
    assert compiled.values
    fresh = aiecc.streams[f"{WANTED[0].name}.0"].copy()
    assert not np.array_equal(compiled.words(**at), fresh)
    np.testing.assert_array_equal(compiled.words(start=0, word=3), fresh)


def test_a_simulator_does_not_take_it(
    aiecc: Aiecc, tmp_path: Path, machine: fakexrt.Machine
) -> None:
    folder = build(WANTED, tmp_path, MlirAie())
    with pytest.raises(BadKernelPackage, match="is compiled") as refused:
        load(folder, Simulator())
    assert "--device npu" in refused.value.fix
    with pytest.raises(Misuse, match="only an NPU runs it"):
        Npu(fakexrt, Package(folder / "design.xclbin", np.zeros(4, np.uint32)), WANTED[0].name)


def test_another_version_of_the_compilers_is_refused(
    aiecc: Aiecc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERSIONS, "mlir_aie", "1.3.4")
    with pytest.raises(DeviceUnavailable, match=r"1\.4\.2; here is 1\.3\.4"):
        build(WANTED, tmp_path, MlirAie())
    assert list(tmp_path.iterdir()) == []
