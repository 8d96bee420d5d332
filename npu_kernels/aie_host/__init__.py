"""Kernels for AIE2P, compiled by a host compiler: our subset of aie_api and what runs it."""

from npu_kernels.aie_host.compile import CompileFault, HostKernel, compile_kernel, compiler
from npu_kernels.aie_host.memory import POISON, aligned, poisoned
from npu_kernels.aie_host.run import KernelFault

__all__ = [
    "POISON",
    "CompileFault",
    "HostKernel",
    "KernelFault",
    "aligned",
    "compile_kernel",
    "compiler",
    "poisoned",
]
