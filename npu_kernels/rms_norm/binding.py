"""RMSNorm, AddRMSNorm, and HeadNorm as a norm of each head."""

from pathlib import Path

from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Binding, Constant, Node, Source, Value
from npu_kernels.manifest import DATA_BYTES_MAX, manifest

LANES = 16  # values a kernel takes at a time
BYTES_MIN = 256  # of a transfer: of fewer some have arrived as zeros


def bind(node: Node) -> tuple[Binding, ...]:
    weight = node.constants["weight"]
    added = node.function == "AddRMSNorm"
    size, design = len(weight), "add_rms_norm" if added else "rms_norm"
    held = manifest(Path(__file__).parent).kernel("rms_norm").data_bytes({"N": size})
    if size % LANES or 4 * size < BYTES_MIN or held > DATA_BYTES_MAX:
        return ()
    parameters = {"N": size, "EPSILON": bits_of(node.attributes["epsilon"])}
    arguments: dict[str, Source] = {
        "x": Value("x"),
        "residual": Value("residual"),
        "weight": Constant(lambda: weight),
        "y": Value("y"),
        "sum": Value("sum"),
    }
    if not added:
        parameters["HEADS"] = node.inputs["x"].shape[-1] // size
        del arguments["residual"], arguments["sum"]
    return (Binding("rms_norm", design, parameters, arguments),)
