"""manifest.toml: what a function's kernels and designs take, in order, and how exact they are."""

import ast
import operator
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DATA_BYTES_MAX = 62 * 1024  # of a core's 64 KB
STACK_BYTES = 0x1800  # 0xD00 was too little for e^x in float32 on somebody's NPU
UNIT_BYTES = 64  # every buffer is a multiple of this, or those behind it are misaligned

_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class Argument:
    """A buffer, or with direction "value" an int32. `depth`: how many of it a fifo holds."""

    name: str
    dtype: str
    direction: str  # in, out, resident (stays in the core from call to call), value
    bytes: str = "4"
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    source: Path
    symbol: str
    does: str
    arguments: tuple[Argument, ...]

    def bytes_of(self, name: str, shape: Mapping[str, int]) -> int:
        """Bytes of an argument at a shape."""
        (found,) = (argument for argument in self.arguments if argument.name == name)
        return evaluate(found.bytes, shape)

    def data_bytes(self, shape: Mapping[str, int]) -> int:
        """Of a core's data memory: its buffers and its stack."""
        buffers = (each for each in self.arguments if each.direction != "value")
        return STACK_BYTES + sum(each.depth * evaluate(each.bytes, shape) for each in buffers)


@dataclass(frozen=True, slots=True)
class HostArgument:
    """A host buffer of a design, in the order its runtime sequence takes them."""

    name: str
    dtype: str
    bytes: str
    direction: str  # in, out, inout, constant (packed once), memory (stays from token to token)
    layout: str = "plain"


@dataclass(frozen=True, slots=True)
class Value:
    """What changes from token to token, where it enters the stream, and its bounds: formulas over
    the design's parameters.
    """

    name: str
    kind: str  # rtp, offset or length; rtp+length where it is both
    most: str
    least: str = "0"

    def bounds(self, parameters: Mapping[str, int]) -> tuple[int, int]:
        """Both are among them."""
        return evaluate(self.least, parameters), evaluate(self.most, parameters)


@dataclass(frozen=True, slots=True)
class Design:
    """An IRON program, one kernel of a package: `module` has build(**parameters, **values)."""

    name: str
    module: str
    parameters: tuple[str, ...]  # whole numbers
    arguments: tuple[HostArgument, ...]
    values: tuple[Value, ...] = ()

    def bytes_of(self, name: str, parameters: Mapping[str, int]) -> int:
        """Bytes of a host buffer."""
        (found,) = (argument for argument in self.arguments if argument.name == name)
        return evaluate(found.bytes, parameters)


@dataclass(frozen=True, slots=True)
class Manifest:
    functions: tuple[str, ...]  # of domain flm
    cosine_min: float
    error_max: float  # of the largest magnitude
    kernels: tuple[Kernel, ...]
    designs: tuple[Design, ...]
    shapes: Mapping[str, Mapping[str, int]]  # by model, what each asks for

    def kernel(self, symbol: str) -> Kernel:
        (found,) = (kernel for kernel in self.kernels if kernel.symbol == symbol)
        return found

    def design(self, name: str) -> Design:
        (found,) = (design for design in self.designs if design.name == name)
        return found


def evaluate(formula: str, shape: Mapping[str, int]) -> int:
    """Whole numbers, names of `shape`, + - * // and brackets."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return shape[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return int(_OPERATIONS[type(node.op)](value(node.left), value(node.right)))
        raise ValueError(f"{formula!r} is no formula of whole numbers")

    return value(_parsed(formula))


@cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body


@cache
def manifest(folder: Path) -> Manifest:
    """Of a function's folder. Raises TypeError or KeyError for what it does not know."""
    read = tomllib.loads((folder / "manifest.toml").read_text())
    kernels = tuple(
        Kernel(
            folder / kernel["source"],
            kernel["symbol"],
            kernel["does"],
            tuple(Argument(**argument) for argument in kernel["arguments"]),
        )
        for kernel in read["kernel"]
    )
    tolerance = read["tolerance"]
    return Manifest(
        tuple(read["functions"]),
        tolerance["cosine_min"],
        tolerance["error_max"],
        kernels,
        tuple(_design(folder.name, **design) for design in read.get("design", ())),
        read["shapes"],
    )


def _design(
    folder: str,
    parameters: Sequence[str],
    arguments: Sequence[Mapping[str, str]],
    values: Sequence[Mapping[str, str]] = (),
    name: str | None = None,
    module: str | None = None,
) -> Design:
    return Design(
        name or folder,
        module or f"npu_kernels.{folder}.design",
        tuple(parameters),
        tuple(HostArgument(**argument) for argument in arguments),
        tuple(Value(**value) for value in values),
    )
