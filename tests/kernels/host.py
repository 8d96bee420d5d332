"""What tests of kernels share: kernels compiled for this machine, designs of them, closeness."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npu_kernels
from npu_kernels.aie_host import HostKernel, aligned, compile_kernel, compiler, poisoned
from npu_kernels.bf16 import to_bits
from npu_kernels.fakexrt.configuration import host_kernels, record_of
from npu_kernels.iron_sim import Counters, check, simulate
from npu_kernels.iron_sim.record import Record
from npu_kernels.manifest import Manifest, manifest

Array = np.ndarray[Any, np.dtype[Any]]

FOLDER = Path(npu_kernels.__file__).parent
NO_COMPILER = "no g++ here: kernels cannot be compiled"
needs_compiler = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
SANITIZERS = [
    pytest.param(False, id="plain"),
    pytest.param(True, id="sanitized", marks=pytest.mark.slow),
]


class Rig:
    """A function's kernels, each compiled when first called."""

    def __init__(self, function: str, sanitize: bool = False, folder: Path = FOLDER) -> None:
        self.manifest: Manifest = manifest(folder / function)
        self._sanitize = sanitize
        self._compiled: dict[str, HostKernel] = {}

    def __call__(self, symbol: str, *arguments: Array | int) -> None:
        if symbol not in self._compiled:
            source = self.manifest.kernel(symbol).source
            self._compiled[symbol] = compile_kernel(source, sanitize=self._sanitize)
        self._compiled[symbol].call(symbol, *arguments)

    def check(self, got: Array, wanted: Array) -> None:
        """Within the manifest's tolerance."""
        exact, found = wanted.astype(np.float64).ravel(), got.astype(np.float64).ravel()
        assert np.isfinite(found).all()
        largest = max(np.abs(exact).max(), np.finfo(np.float32).tiny)
        assert np.abs(found - exact).max() <= self.manifest.error_max * largest
        if exact.any():
            assert cosine(found, exact) >= self.manifest.cosine_min


def record(rig: Rig, name: str, parameters: Mapping[str, int], **values: int) -> Record:
    """Of a design, once it keeps to every budget and to its manifest."""
    design = rig.manifest.design(name)
    made = record_of(import_module(design.module), {**parameters, **values})
    check(made, strict=True)
    for said, argument in zip(design.arguments, made.arguments, strict=True):
        assert argument.nbytes == design.bytes_of(said.name, parameters), said.name
    return made


def dispatch(
    rig: Rig, name: str, parameters: Mapping[str, int], buffers: Sequence[Array], **values: int
) -> Counters:
    """Of a design, on a fresh array."""
    made = record(rig, name, parameters, **values)
    return simulate(made, buffers, host_kernels(made))


def cosine(a: Array, b: Array) -> float:
    """Of the angle between two vectors, in float64."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def held(values: Array) -> Array:
    """A copy that kernels take: aligned."""
    copy = aligned(values.shape, values.dtype)
    copy[...] = values
    return copy


def unwritten(shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Room for results, poisoned."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return poisoned(count).view(dtype).reshape(shape)


def bf16(values: Array) -> Array:
    """bfloat16 bits, aligned."""
    return held(to_bits(values))


def spread(random: np.random.Generator, *shape: int) -> Array:
    """Values of very different sizes, some zero, of both signs: what rounding trips over."""
    values = random.standard_normal(shape) * np.exp2(random.integers(-20, 6, shape))
    values[random.random(shape) < 0.1] = 0
    values[random.random(shape) < 0.05] *= -0.0
    return held(values.astype(np.float32))
