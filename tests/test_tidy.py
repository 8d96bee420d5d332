"""The rules of docs/design.md a machine can check. Each failure says what to do."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]

# Lowest first. A package may import those before it, never those after it or
# beside it: packages that share a line do not know of each other.
LAYERS = [
    {"errors", "numerals"},
    {"console", "settings"},
    {"core"},
    {"devices", "text"},
    {"memory"},
    {"graph"},
    {"models", "prefix"},
    {"runner", "hub"},
    {"engine"},
    {"server", "llm"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HEAVY = {"onnxruntime", "onnx", "pyxrt", "aie", "tokenizers", "jinja2", "uvicorn", "fastapi", "PIL"}
HEAVY |= {"huggingface_hub", "llguidance", "prompt_toolkit", "rich"}
HEAVY_ALLOWED = {"server": {"fastapi"}}  # the package that is that library's face
BANNED_NAMES = ("Manager", "Helper", "Util", "Utils", "Common", "Base", "Handler", "Impl", "Misc")
BANNED_FILES = {"utils", "util", "helpers", "common", "misc", "base", "managers"}
FIXTURES_BYTES_MAX = 16_000_000
FILE_LINES_MAX, FUNCTION_LINES_MAX, COMMENT_LINES_MAX, LINE_COLUMNS_MAX = 400, 60, 8, 100


def sources() -> Iterator[tuple[Path, str, ast.Module]]:
    """(path, package, syntax tree) of every module; models/ is installed as flm.models."""
    roots = ("flm", "models", "npu_kernels")
    for path in sorted(path for root in roots for path in (ROOT / root).rglob("*.py")):
        relative = path.relative_to(ROOT)
        if relative.parts[0] != "flm":
            package = relative.parts[0]
        elif relative.parts[1] == "models":
            continue  # the symlink, should rglob follow it
        else:
            package = relative.parts[1].removesuffix(".py")
        yield relative, package, ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """(dotted name, line, at module level) of every import."""
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import: write the full path, it is what grep finds"
            names = [node.module or ""]
        for name in names:
            yield name, node.lineno, id(node) in top


def test_imports_point_down() -> None:
    wrong = []
    for path, here, tree in sources():
        for name, line, _ in imports(tree):
            parts = name.split(".")
            if parts[0] != "flm" or len(parts) < 2 or parts[1] == here:
                continue
            if here in ("__init__", "__main__", "npu_kernels"):
                continue
            for package in (here, parts[1]):
                assert package in LEVEL, f"{path}: give {package} a place in LAYERS"
            if LEVEL[parts[1]] >= LEVEL[here]:
                wrong.append(f"{path}:{line}: {here} may not import {parts[1]}; move the noun down")
    assert not wrong, "\n".join(wrong)


def test_kernels_do_not_know_of_flm() -> None:
    wrong = [
        f"{path}:{line}: npu_kernels may not import {name}"
        for path, package, tree in sources()
        if package == "npu_kernels"
        for name, line, _ in imports(tree)
        if name.split(".")[0] == "flm"
    ]
    assert not wrong, "\n".join(wrong)


def test_kernels_are_known_to_their_device_alone() -> None:
    wrong = [
        f"{path}:{line}: only flm/devices/xrt may import {name}"
        for path, package, tree in sources()
        if package != "npu_kernels" and path.parts[:3] != ("flm", "devices", "xrt")
        for name, line, _ in imports(tree)
        if name.split(".")[0] == "npu_kernels"
    ]
    assert not wrong, "\n".join(wrong)


def test_heavy_imports_are_lazy() -> None:
    wrong = [
        f"{path}:{line}: import {name} inside the function that needs it"
        for path, package, tree in sources()
        for name, line, top in imports(tree)
        if top and name.split(".")[0] in HEAVY - HEAVY_ALLOWED.get(package, set())
    ]
    assert not wrong, "\n".join(wrong)


def test_names_say_what_they_are() -> None:
    wrong = []
    for path, _, tree in sources():
        if path.stem in BANNED_FILES:
            wrong.append(f"{path}: name the file for what is in it")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith(BANNED_NAMES):
                wrong.append(f"{path}:{node.lineno}: {node.name}: find the noun")
    assert not wrong, "\n".join(wrong)


def test_things_fit_on_a_screen() -> None:
    wrong = []
    for path, _, tree in sources():
        lines = (ROOT / path).read_text().splitlines()
        if len(lines) > FILE_LINES_MAX:
            wrong.append(f"{path}: {len(lines)} lines; split by idea, limit {FILE_LINES_MAX}")
        run = 0
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_COLUMNS_MAX:
                wrong.append(f"{path}:{number}: over {LINE_COLUMNS_MAX} columns")
            run = run + 1 if line.lstrip().startswith("#") else 0
            if run == COMMENT_LINES_MAX + 1:
                wrong.append(f"{path}:{number}: long comment; explain once, at the top or in docs")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    wrong.append(f"{path}:{node.lineno}: {node.name} is {length} lines")
    for path in sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/*.py")]):
        if (length := len(path.read_text().splitlines())) > FILE_LINES_MAX:
            wrong.append(f"{path.relative_to(ROOT)}: {length} lines; split by idea")
    assert not wrong, "\n".join(wrong)


def test_a_checkout_stays_small() -> None:
    files = [path for path in (ROOT / "tests" / "fixtures").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if path.suffix != ".pyc")
    assert size <= FIXTURES_BYTES_MAX, f"tests/fixtures holds {size:,} bytes: write what can be"


def test_only_console_prints() -> None:
    wrong = [
        f"{path}:{node.lineno}: print through flm.console, where the look is decided"
        for path, package, tree in sources()
        if package != "console"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_unfinished() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path, _, _ in sources()
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if any(word in line for word in words)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_design_page_shows_every_file() -> None:
    """In the tree of section 2, on the lines of its folder and not among what comes later."""
    page = (ROOT / "docs" / "design.md").read_text()
    words: dict[str, set[str]] = {}
    (tree,) = re.findall(r"^```\nflm/\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for line in tree.splitlines():
        if entry := re.match(r" {0,4}([\w<>/.]+)", line):
            folder = words.setdefault(entry[1].rstrip("/"), set())
        folder |= set(re.findall(r"\w+", line.partition("later ")[0]))
    missing = []
    for path, package, _ in sources():
        any_other = "<function>" if package == "npu_kernels" else "<family>"
        folder = path.parent.name if path.parent.name in words else any_other
        place = path.name if path.parent.name == "flm" else folder
        if path.stem not in {"__init__", "__main__"} and path.stem not in words.get(place, ()):
            missing.append(f"{path}: show it in docs/design.md, section 2")
    assert not missing, "\n".join(missing)


def test_the_design_page_names_no_file_that_is_not_there() -> None:
    here = {str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/*.py")}
    for name in re.findall(r"[\w/]+\.py\b", (ROOT / "docs" / "design.md").read_text()):
        assert any(f"/{path}".endswith(f"/{name}") for path in here), name


def test_mutants_find_their_place() -> None:
    """Else `python -m tests.mutants`, which takes minutes, is what first says so."""
    for each in MUTANTS:
        assert (ROOT / each.file).read_text().count(each.text) == 1, f"{each.file}: {each.text}"
        assert all((ROOT / test).is_file() for test in each.tests), each.tests
