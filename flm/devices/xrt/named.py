"""What --device npu and npu-sim stand for: whose pyxrt, and who makes kernels for it."""

from importlib import import_module
from types import ModuleType

from flm.devices.xrt.toolchains import MlirAie, Simulator, Toolchain
from flm.errors import DeviceUnavailable
from flm.settings import NPU_SIM


def module_of(device: str) -> ModuleType:
    """pyxrt's API: the real module's or fakexrt's. Raises DeviceUnavailable where the simulator
    could run no kernel.
    """
    if device != NPU_SIM:
        return import_module("pyxrt")
    from npu_kernels.aie_host import compiler

    if compiler() is None:
        raise DeviceUnavailable(
            "The simulator compiles the NPU's kernels for this machine, and there is no g++.",
            fix="install it (Debian: apt install g++), or --device cpu",
        )
    return import_module("npu_kernels.fakexrt")


def toolchain_of(device: str) -> Toolchain:
    return Simulator() if device == NPU_SIM else MlirAie()
