"""The container that configures the NPU (xclbin, axlf): read and written.

container = read(path.read_bytes())  # an XclbinFault says what is wrong with it
container.kernels[0].arguments, container.partition.pdis[0].image
data = write(pdi, uuid=..., columns=8)
"""

from npu_kernels.xclbin.axlf import Section, XclbinFault
from npu_kernels.xclbin.partition import Partition, Pdi
from npu_kernels.xclbin.read import Argument, Kernel, Memory, Xclbin, read
from npu_kernels.xclbin.write import BUFFERS_MIN, write

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
]
