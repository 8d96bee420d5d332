"""Designs call IRON as it is: parameters of its public source, read and written down here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.host import FOLDER

# Xilinx/mlir-aie, python/iron: worker.py, buffer.py, kernel.py, controlflow.py, program.py,
# dataflow/objectfifo.py, runtime/{runtime,taskgroup}.py, device/{__init__,tile}.py; python/helpers:
# taplib/tap.py. What comes after these is not used.
SIGNATURES = {
    "ObjectFifo": ("obj_type", "depth", "name"),
    "prod": ("depth", "channel", "tile"),
    "cons": ("depth", "from_stream", "channel", "tile"),
    "split": ("offsets", "tile", "depths", "obj_types", "names"),
    "join": ("offsets", "tile", "depths", "obj_types", "names"),
    "acquire": ("num_elem",),
    "release": ("num_elem",),
    "fill": ("source", "tap", "wait", "packet", "offset_parameter", "group"),
    "drain": ("dest", "tap", "wait", "packet", "offset_parameter", "group"),
    "Worker": ("core_fn", "fn_args", "tile", "while_true", "stack_size"),
    "Buffer": ("type", "initial_value", "name", "tile", "use_write_rtp"),
    "ExternalFunction": (
        *("name", "object_file_name", "source_file", "source_string", "arg_types"),
        *("include_dirs", "compile_flags"),
    ),
    "Runtime": ("seq_fn", "fn_args"),
    "TaskGroup": ("id",),
    "finish": (),
    "range_": ("start", "stop", "step"),
    "Program": ("device", "rt", "workers"),
    "Tile": ("col", "row"),
    "TensorAccessPattern": ("tensor_dims", "offset", "sizes", "strides"),
    "from_name": ("name", "n_cols"),
}
# By keyword alone: between versions these have stood in other places, or others before them.
NAMED = {
    *("tile", "depths", "obj_types", "group", "wait", "tap", "use_write_rtp", "stack_size"),
    *("workers", "n_cols"),
}
FUNCTIONS = {"range_", "from_name"}
SOURCES = [
    path
    for path in sorted(FOLDER.rglob("*.py"))
    if path.parent.name not in {"iron_sim", "aie", "fakexrt"} and "aie" in path.read_text()
]


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute)
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in SIGNATURES and (method or name[0].isupper() or name in FUNCTIONS):
                yield name, node


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_every_argument_has_a_parameter_and_what_moved_goes_by_its_name(path: Path) -> None:
    for name, call in calls(path):
        parameters = SIGNATURES[name]
        said = f"{path.name}:{call.lineno}: {name}"
        assert {each.arg for each in call.keywords} - {None} <= set(parameters), said
        if not any(isinstance(each, ast.Starred) for each in call.args):
            assert len(call.args) <= len(parameters), said
            assert not NAMED & set(parameters[: len(call.args)]), said


def test_all_of_them_are_called() -> None:
    assert {name for path in SOURCES for name, _ in calls(path)} == set(SIGNATURES)
