"""The container that configures the NPU (xclbin, axlf): read and written.

container = read(path.read_bytes())  # an XclbinFault says what is wrong with it
container.kernels[0].arguments, container.image(container.kernels[0])
data = write_all({"rms_norm": pdi, "swiglu": other}, uuid, columns=8)
"""

from npu_kernels.xclbin.axlf import Section, XclbinFault
from npu_kernels.xclbin.partition import Partition, Pdi
from npu_kernels.xclbin.read import Argument, Kernel, Memory, Xclbin, read
from npu_kernels.xclbin.write import BUFFERS_MIN, write, write_all

__all__ = [
    "BUFFERS_MIN",
    "Argument",
    "Kernel",
    "Memory",
    "Partition",
    "Pdi",
    "Section",
    "Xclbin",
    "XclbinFault",
    "read",
    "write",
    "write_all",
]
