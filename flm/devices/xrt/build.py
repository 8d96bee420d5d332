"""A package made: every design at its parameters, and where its values enter the instructions.

A value's place is found by building the design at several values: word = base + factor * value.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from flm.devices.npu import FAMILY
from flm.devices.xrt.load import load
from flm.devices.xrt.package import (
    KERNELS,
    MANIFEST,
    SCHEMA,
    XCLBIN,
    Package,
    Packages,
    Wanted,
    Words,
)
from flm.devices.xrt.sources import digest
from flm.devices.xrt.toolchains import Sampled, Toolchain
from flm.errors import BadKernelPackage

if TYPE_CHECKING:
    from npu_kernels.manifest import Design

KEY_LENGTH = 16


def ensure(wanted: Iterable[Wanted], folder: Path, toolchain: Toolchain) -> Package:
    """The package of these kernels in a model's folder: built if it is not there yet."""
    return load(build(wanted, folder, toolchain), toolchain)


def beside(toolchain: Toolchain) -> Packages:
    """Those in models' folders, built there if they are missing."""
    return lambda graph, wanted: ensure(wanted, graph.parent / KERNELS, toolchain)


def build(wanted: Iterable[Wanted], folder: Path, toolchain: Toolchain) -> Path:
    """Of these kernels, each once, within `folder` under a name that its content gives it."""
    kernels = list({kernel.name: kernel for kernel in wanted}.values())
    key = _key(kernels, toolchain)
    place = folder / f"{toolchain.kind}-{key[:KEY_LENGTH]}"
    if (place / MANIFEST).exists():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as work:
        draft = Path(work) / "package"
        draft.mkdir()
        _write(draft, kernels, toolchain, UUID(key[:32]), Path(work))
        try:
            os.rename(draft, place)
        except OSError:
            if not (place / MANIFEST).exists():  # else another process was first
                shutil.rmtree(place)
                os.rename(draft, place)
    return place


def design_of(kernel: Wanted) -> Design:
    import npu_kernels
    from npu_kernels.manifest import manifest

    return manifest(Path(npu_kernels.__file__).parent / kernel.folder).design(kernel.design)


def _key(kernels: Sequence[Wanted], toolchain: Toolchain) -> str:
    said = {
        "schema": SCHEMA,
        "kind": toolchain.kind,
        "family": FAMILY,
        "toolchain": dict(toolchain.pins),
        "kernels": [[k.name, dict(k.parameters), digest(k.folder)] for k in kernels],
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _write(
    place: Path, kernels: Sequence[Wanted], toolchain: Toolchain, identity: UUID, work: Path
) -> None:
    from npu_kernels.xclbin import read

    designs = [design_of(kernel) for kernel in kernels]
    sampled = [
        Sampled(kernel.name, design, kernel.parameters, _samples(design, kernel.parameters))
        for kernel, design in zip(kernels, designs, strict=True)
    ]
    made = toolchain.make(sampled, identity, work)
    entries = [
        _entry(place, kernel, each, streams)
        for kernel, each, streams in zip(kernels, sampled, made.streams, strict=True)
    ]
    (place / XCLBIN).write_bytes(made.xclbin)
    said = {
        "schema": SCHEMA,
        "kind": toolchain.kind,
        "family": FAMILY,
        "toolchain": dict(toolchain.pins),
        "xclbin": {"sha256": sha256(made.xclbin), "uuid": str(read(made.xclbin).uuid)},
        "kernels": entries,
    }
    (place / MANIFEST).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def _entry(
    place: Path, kernel: Wanted, sampled: Sampled, streams: Sequence[Words]
) -> dict[str, Any]:
    design, data = sampled.design, streams[0].astype("<u4").tobytes()
    file = f"{kernel.name}.insts.bin"
    (place / file).write_bytes(data)
    return {
        "folder": kernel.folder,
        "design": kernel.design,
        "parameters": dict(kernel.parameters),
        "name": kernel.name,
        "sources": digest(kernel.folder),
        "instructions": {"file": file, "sha256": sha256(data)},
        "arguments": [
            {
                "name": argument.name,
                "dtype": argument.dtype,
                "nbytes": design.bytes_of(argument.name, kernel.parameters),
                "direction": argument.direction,
                "layout": argument.layout,
            }
            for argument in design.arguments
        ],
        "values": _values(sampled, streams),
    }


def _samples(design: Design, parameters: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
    """All at their least; then each alone at its next, if it has one, and at its most; last, all at
    their most.
    """
    bounds = {value.name: value.bounds(parameters) for value in design.values}
    least = {name: low for name, (low, _) in bounds.items()}
    alone = [
        least | {name: at}
        for name, (low, high) in bounds.items()
        for at in (min(low + 1, high), high)
    ]
    last = [{name: high for name, (_, high) in bounds.items()}] if bounds else []
    return (least, *alone, *last)


def _values(sampled: Sampled, streams: Sequence[Words]) -> list[dict[str, Any]]:
    from npu_kernels.txn import StreamFault, find

    values, said = sampled.design.values, []
    patched = streams[0].copy()
    moved: dict[int, str] = {}
    for number, value in enumerate(values):
        chosen = (0, 1 + 2 * number, 2 + 2 * number)
        built = {sampled.samples[n][value.name]: streams[n] for n in chosen}
        least, most = min(built), max(built)
        try:
            sites = find(built, all_there_are=most - least < 2)
        except StreamFault as fault:
            raise _unpatchable(sampled, value.name, str(fault)) from fault
        if not sites and most > least:
            raise _unpatchable(sampled, value.name, "it changes no word")
        for site in sites:
            if site.index in moved:
                what = f"word {site.index} follows {moved[site.index]} as well"
                raise _unpatchable(sampled, value.name, what)
            moved[site.index] = value.name
            patched[site.index] = site.word(most)
        bounds = {"least": least, "most": most}
        places = {"sites": [asdict(site) for site in sites]}
        said.append({"name": value.name, "kind": value.kind, **bounds, **places})
    if not np.array_equal(patched, streams[-1]):
        raise _unpatchable(sampled, "and".join(moved.values()), "together they move other words")
    return said


def _unpatchable(sampled: Sampled, value: str, why: str) -> BadKernelPackage:
    return BadKernelPackage(
        f"The instructions of {sampled.name} cannot be patched for {value}: {why}.",
        fix="write its design so that each value enters words of its own, in a straight line",
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
