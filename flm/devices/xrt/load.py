"""A package, read and looked at before first use: nothing in its folder is believed.

Hashes, the sources and the toolchain it was made of, the xclbin's kernels and what they take, and
every stream by npu_kernels.txn: what the firmware would hang on is refused here, with its rule.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flm.devices.npu import FAMILY
from flm.devices.xrt.package import (
    MANIFEST,
    SCALARS,
    SCHEMA,
    SIMULATED,
    XCLBIN,
    Argument,
    KernelEntry,
    Package,
    Value,
    Words,
)
from flm.devices.xrt.sources import digest
from flm.devices.xrt.toolchains import COLUMNS, Toolchain
from flm.errors import BadKernelPackage

if TYPE_CHECKING:
    from npu_kernels.xclbin import Xclbin


def load(folder: Path, toolchain: Toolchain) -> Package:
    """Raises BadKernelPackage for whatever a kernel of this toolchain's here could not be."""
    said = _manifest(folder)
    try:
        _ours(folder, said, toolchain)
        container = _container(folder, said["xclbin"])
        kernels = tuple(_kernel(folder, each, container) for each in said["kernels"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadKernelPackage(f"{folder / MANIFEST} is not whole: {error!r}.") from error
    return Package(folder, said["kind"], kernels)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadKernelPackage(f"{folder} is no kernel package: no {MANIFEST}.") from None
    except (OSError, ValueError) as error:
        raise BadKernelPackage(f"{folder / MANIFEST} cannot be read: {error}.") from error
    if not isinstance(said, dict):
        raise BadKernelPackage(f"{folder / MANIFEST} is no manifest.")
    return said


def _ours(folder: Path, said: dict[str, Any], toolchain: Toolchain) -> None:
    if said["schema"] != SCHEMA:
        raise BadKernelPackage(f"{folder} is of schema {said['schema']}; this flm reads {SCHEMA}.")
    if said["family"] != FAMILY:
        raise BadKernelPackage(f"{folder} is for {said['family']}; kernels here run on {FAMILY}.")
    if said["kind"] != toolchain.kind:
        simulated = said["kind"] == SIMULATED
        raise BadKernelPackage(
            f"{folder} is {said['kind']}, this device takes what is {toolchain.kind}.",
            fix="--device npu-sim runs it" if simulated else "--device npu runs it",
        )
    if said["toolchain"] != dict(toolchain.pins):
        made, wanted = _listed(said["toolchain"]), _listed(toolchain.pins)
        raise BadKernelPackage(f"{folder} was made by {made}; this flm wants {wanted}.")
    for kernel in said["kernels"]:
        if kernel["sources"] != digest(kernel["folder"]):
            raise BadKernelPackage(
                f"{kernel['name']} in {folder} was made of other sources of {kernel['folder']} "
                "than this flm has."
            )


def _container(folder: Path, said: dict[str, Any]) -> Xclbin:
    from npu_kernels.xclbin import XclbinFault, read

    data = _hashed(folder / XCLBIN, said["sha256"])
    try:
        container = read(data)
    except XclbinFault as fault:
        raise BadKernelPackage(f"{folder / XCLBIN}: {fault}.") from fault
    if str(container.uuid) != said["uuid"]:
        raise BadKernelPackage(f"{folder / XCLBIN} has another uuid than the manifest says.")
    if container.partition.columns > COLUMNS:
        columns = container.partition.columns
        raise BadKernelPackage(
            f"{folder / XCLBIN} wants {columns} columns; {FAMILY} has {COLUMNS}."
        )
    return container


def _kernel(folder: Path, said: dict[str, Any], container: Xclbin) -> KernelEntry:
    from npu_kernels.txn import NPU2, Site, StreamFault, check_words

    arguments = tuple(Argument(**argument) for argument in said["arguments"])
    _declared(folder, said["name"], len(arguments), container)
    file = folder / said["instructions"]["file"]
    words = _words(_hashed(file, said["instructions"]["sha256"]), file)
    values = tuple(
        Value(**{**value, "sites": tuple(Site(**site) for site in value["sites"])})
        for value in said["values"]
    )
    entry = KernelEntry(
        said["folder"],
        said["design"],
        said["parameters"],
        said["name"],
        words,
        arguments,
        values,
    )
    try:
        sizes = [argument.nbytes for argument in arguments]
        check_words(entry.words(**{value.name: value.least for value in values}), NPU2, sizes)
        check_words(entry.words(**{value.name: value.most for value in values}), NPU2, sizes)
    except StreamFault as fault:
        raise BadKernelPackage(f"{file} breaks a rule of the NPU: {fault}.") from fault
    return entry


def _declared(folder: Path, name: str, buffers: int, container: Xclbin) -> None:
    kernel = container.kernel(name)
    if kernel is None or container.image(kernel) is None:
        have = ", ".join(kernel.name for kernel in container.kernels)
        raise BadKernelPackage(f"{folder / XCLBIN} has no kernel {name}; it has {have}.")
    declared = len(kernel.arguments) - SCALARS
    if declared < buffers:
        raise BadKernelPackage(
            f"{name} in {folder / XCLBIN} takes {declared} buffers, its manifest says {buffers}."
        )


def _words(data: bytes, file: Path) -> Words:
    if len(data) % 4:
        raise BadKernelPackage(f"{file} is cut short: {len(data)} bytes are no words.")
    return np.frombuffer(data, "<u4")


def _hashed(path: Path, wanted: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadKernelPackage(f"{path} cannot be read: {error.strerror}.") from error
    if hashlib.sha256(data).hexdigest() != wanted:
        raise BadKernelPackage(
            f"{path} is not what its manifest was written for: {len(data)} bytes of another hash."
        )
    return data


def _listed(pins: dict[str, str] | Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in dict(pins).items())
