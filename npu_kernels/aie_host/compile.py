"""One kernel.cc to a HostKernel, compiled once for each content."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from npu_kernels.aie_host.memory import ALIGNMENT, Array
from npu_kernels.aie_host.run import KernelFault, Library, Program

HERE = Path(__file__).parent
INCLUDES = (HERE / "include", HERE.parent / "include")
DRIVER = HERE / "driver.cc"
FLAGS = ["-std=c++20", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wno-psabi"]
FAST = ["-O1", "-ftree-vectorize", "-fPIC", "-shared", "-fno-gnu-unique", "-Wl,-Bsymbolic"]
SANITIZED = [
    "-O1",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-rdynamic",
]
COMPILE_SECONDS_MAX = 300


class CompileFault(RuntimeError):
    """What the compiler says of a kernel."""


@cache
def compiler() -> str | None:
    """Where g++ is, None if there is none."""
    return shutil.which("g++")


@cache
def _version(path: str) -> str:
    return subprocess.run(
        [path, "-dumpfullversion"], capture_output=True, text=True, check=True
    ).stdout.strip()


def fills_stacks() -> bool:
    """Whether reads of a kernel's own arrays are trapped, too: from g++ 12 on."""
    return int(_version(compiler() or "").split(".")[0]) >= 12


class HostKernel:
    """A compiled kernel.cc. Its symbols are called on byte-exact copies of arrays."""

    def __init__(self, source: Path, run: Library | Program) -> None:
        self.source = source
        self._run = run
        self._kinds = _parameters(source.read_text())

    def call(self, symbol: str, *arguments: Array | int) -> None:
        """Arrays are passed as pointers to their bytes and changed in place, integers as int32.

        Raises KernelFault where a core would go wrong, and for arguments that do not fit the
        kernel's own: before it runs.
        """
        kinds = self._kinds.get(symbol)
        if kinds is not None and len(kinds) != len(arguments):
            raise KernelFault(f"{symbol} takes {len(kinds)} arguments, not {len(arguments)}")
        for index, argument in enumerate(arguments):
            place = f"{symbol}, argument {index}"
            is_array = isinstance(argument, np.ndarray)
            if kinds is not None and kinds[index] != is_array:
                raise KernelFault(
                    f"{place}: {'an array' if kinds[index] else 'an int'} belongs here"
                )
            if isinstance(argument, np.ndarray):
                _check_array(place, argument)
            elif not -(2**31) <= argument < 2**31:
                raise KernelFault(f"{place}: {argument} is not an int32")
        self._run.call(symbol, [a if isinstance(a, np.ndarray) else int(a) for a in arguments])


def _check_array(place: str, array: Array) -> None:
    if not array.flags.c_contiguous or not array.flags.writeable or not array.nbytes:
        raise KernelFault(f"{place}: not contiguous, not writeable or empty")
    if array.ctypes.data % ALIGNMENT:
        raise KernelFault(f"{place}: not aligned to {ALIGNMENT} bytes")


def _parameters(source: str) -> dict[str, list[bool]]:
    """Of each function written `extern "C" void name(...)`: which parameters are pointers."""
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    found = re.findall(r'extern\s+"C"\s+void\s+(\w+)\s*\(([^)]*)\)', source)
    return {name: ["*" in each for each in text.split(",")] for name, text in found}


def compile_kernel(
    source: Path, *, defines: Mapping[str, int | str] | None = None, sanitize: bool = False
) -> HostKernel:
    """Raises CompileFault with what the compiler says, also where there is none."""
    path = compiler()
    if path is None:
        raise CompileFault("no g++ here: install it (Debian: apt install g++)")
    source = source.resolve()
    flags = [*FLAGS, *(SANITIZED if sanitize else FAST)]
    if fills_stacks():
        flags.append("-ftrivial-auto-var-init=pattern")
    flags += [f"-D{name}={value}" for name, value in (defines or {}).items()]
    built = _folder() / f"{source.parent.name}.{source.stem}.{_content(source, path, flags)}"
    if not built.exists():
        includes = [f"-I{folder}" for folder in INCLUDES]
        _compile([path, *flags, *includes, f'-DAIE_HOST_KERNEL="{source}"', str(DRIVER)], built)
    return HostKernel(source, Program(built) if sanitize else Library(built))


def _compile(command: list[str], built: Path) -> None:
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        fresh = Path(folder) / "built"
        done = subprocess.run(
            [*command, "-o", str(fresh), "-ldl"],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS_MAX,
        )
        if done.returncode:
            raise CompileFault(f"{shlex.join(command)}\n{done.stderr}")
        fresh.replace(built)


def _content(source: Path, compiler_path: str, flags: list[str]) -> str:
    """The same in every checkout."""
    digest = hashlib.sha256(repr((_version(compiler_path), flags)).encode())
    headers = [each for folder in INCLUDES for each in sorted(folder.rglob("*.hpp"))]
    for each in [source, DRIVER, *headers, *sorted(source.parent.glob("*.h*"))]:
        digest.update(each.name.encode() + b"\0" + each.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _folder() -> Path:
    """Not a shared one: what is built there is loaded."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "flm" / "aie_host"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
