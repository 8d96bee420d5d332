"""Manifests and sources of kernels agree with one another and with what a core has."""

import re
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from flm.graph import functions
from npu_kernels.manifest import DATA_BYTES_MAX, UNIT_BYTES, Design, Kernel, evaluate, manifest
from tests.kernels.host import FOLDER

FOLDERS = sorted(path.parent for path in FOLDER.glob("*/manifest.toml"))
MANIFESTS = [pytest.param(manifest(folder), id=folder.name) for folder in FOLDERS]
KERNELS = [
    pytest.param(kernel, id=f"{folder.name}.{kernel.symbol}")
    for folder in FOLDERS
    for kernel in manifest(folder).kernels
]
DESIGNS = [
    pytest.param(design, id=design.name)
    for folder in FOLDERS
    for design in manifest(folder).designs
]
CTYPES = {
    "float32": {"float"},
    "int32": {"int32_t"},
    "int8": {"int8_t"},
    "uint8": {"uint8_t"},
    "bfloat16": {"bfloat16", "uint16_t"},
    "float32 bits": {"int32_t"},
}


def code(path: Path) -> str:
    return re.sub(r"//[^\n]*", "", path.read_text())


def test_every_kernel_file_is_in_a_manifest() -> None:
    listed = {kernel.source for folder in FOLDERS for kernel in manifest(folder).kernels}
    assert listed == {path for path in FOLDER.glob("*/*.cc") if path.parent.name != "aie_host"}


@pytest.mark.parametrize("it", MANIFESTS)
def test_functions_are_flms(it: object) -> None:
    text = Path(functions.__file__).read_text()
    for name in it.functions:  # type: ignore[attr-defined]
        assert f'"{name}"' in text


@pytest.mark.parametrize("kernel", KERNELS)
def test_arguments_are_the_sources(kernel: Kernel) -> None:
    """In order, by name and type; one symbol a file, for IRON makes one object of each."""
    (found,) = re.findall(r'extern\s+"C"\s+void\s+(\w+)\s*\(([^)]*)\)', code(kernel.source))
    assert found[0] == kernel.symbol
    for text, argument in zip(found[1].split(","), kernel.arguments, strict=True):
        constant, ctype, pointer, name = re.fullmatch(
            r"\s*(const )?(\w+) (\*?)(\w+)\s*", text
        ).groups()  # type: ignore[union-attr]
        assert name == argument.name
        assert ctype in CTYPES[argument.dtype], name
        assert bool(pointer) == (argument.direction != "value"), name
        assert not constant or argument.direction in ("in", "resident"), name
        assert constant or argument.direction in ("out", "resident", "value"), name


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_buffers_fit_a_core(folder: Path) -> None:
    it = manifest(folder)
    for kernel in it.kernels:
        buffers = [each for each in kernel.arguments if each.direction != "value"]
        assert sum(each.direction == "in" for each in buffers) <= 2, "streams into a core"
        assert sum(each.direction == "out" for each in buffers) <= 2, "streams out of a core"
        for model, shape in it.shapes.items():
            assert kernel.data_bytes(shape) <= DATA_BYTES_MAX, (kernel.symbol, model)
            for each in buffers:
                assert evaluate(each.bytes, shape) % UNIT_BYTES == 0, (each.name, model)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sources_keep_to_what_aie2p_does_well(kernel: Kernel) -> None:
    text = code(kernel.source)
    assert "aie::set_rounding(aie::rounding_mode::conv_even);" in text
    assert not re.search(r"\bstatic\b(?!_cast)", text), "memory of a kernel is not cleared"
    assert not re.search(r"\bfloat \w+ ?[=;]", text), "floats outside vectors are a library's"
    assert not re.search(r"aie::(inv|invsqrt|exp2|tanh)\b", text), "coarse: float32.hpp refines"


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_takes_what_its_manifest_says(design: Design) -> None:
    build = import_module(design.module).build
    values = tuple(value.name for value in design.values)
    assert tuple(signature(build).parameters) == (*design.parameters, *values)
    assert len(design.arguments) <= 5, "the firmware maps the first five"
    for argument in design.arguments:
        assert argument.direction in {"in", "out", "inout", "constant", "memory"}, argument.name
        assert evaluate(argument.bytes, dict.fromkeys(design.parameters, 64)) > 0, argument.name
    assert {kind for value in design.values for kind in value.kind.split("+")} <= {
        "rtp",
        "offset",
        "length",
    }


def test_names_of_designs_are_their_own() -> None:
    """They are kernels of one package."""
    names = [design.name for folder in FOLDERS for design in manifest(folder).designs]
    assert len(set(names)) == len(names)
