"""What --device npu and npu-sim stand for: whose pyxrt, and who makes kernels for it."""

from importlib import import_module
from types import ModuleType

from flm.devices.xrt.toolchains import MlirAie, Simulator, Toolchain

NPU, NPU_SIM = "npu", "npu-sim"


def module_of(device: str) -> ModuleType:
    """pyxrt's API: the real module's or fakexrt's."""
    return import_module("npu_kernels.fakexrt" if device == NPU_SIM else "pyxrt")


def toolchain_of(device: str) -> Toolchain:
    return Simulator() if device == NPU_SIM else MlirAie()
