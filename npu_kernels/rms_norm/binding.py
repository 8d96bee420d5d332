"""RMSNorm, AddRMSNorm, and HeadNorm as a norm of each head."""

from pathlib import Path

from npu_kernels.bf16 import bits_of
from npu_kernels.binding import Binding, Constant, Node, Operand, Source, Tensor
from npu_kernels.columns import RUN
from npu_kernels.manifest import DATA_BYTES_MAX, manifest

LANES = 16  # values a kernel takes at a time
BYTES_MIN = 256  # of a transfer: of fewer some have arrived as zeros


def bind(node: Node) -> tuple[Binding, ...]:
    weight, tokens = node.constants["weight"], node.tokens
    added, size = node.function == "AddRMSNorm", len(weight)
    held = manifest(Path(__file__).parent).kernel("rms_norm").data_bytes({"N": size})
    if size % LANES or 4 * size < BYTES_MIN or held > DATA_BYTES_MAX:
        return ()
    factors, epsilon = Constant(lambda: weight, "plain"), bits_of(node.attributes["epsilon"])
    ends: dict[str, Source] = {"weight": factors, "y": Operand("y")}
    both: dict[str, Source] = {name: Operand(name) for name in ("x", "residual", "sum")}
    if added and tokens == 1:
        parameters = {"N": size, "EPSILON": epsilon}
        return (Binding("rms_norm", "add_rms_norm", parameters, both | ends),)
    if added and size % RUN:
        return ()
    x = Tensor((1, tokens, size)) if added else node.inputs["x"]
    parameters = {
        "N": size,
        "HEADS": x.shape[-1] // size,
        "T": tokens,
        "ROW": x.apart,
        "EPSILON": epsilon,
    }
    given: Source = Operand("sum") if added else Operand("x", row=x.row)
    norm = Binding("rms_norm", "rms_norm", parameters, {"x": given, **ends})
    if not added:
        return (norm,)
    return Binding("rms_norm", "residual_sum", {"N": size, "T": tokens}, both), norm
