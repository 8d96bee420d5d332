"""What a model takes of the machine's memory, worked out before anything is allocated."""

from collections.abc import Mapping
from dataclasses import dataclass

from flm.core.sizes import MIB, mib
from flm.errors import BadRequest, NoRoom
from flm.memory.layout import MemoryLayout

PROGRAM_BYTES = 256 * MIB  # Python, the server, a pass's own tensors
ROWS_SHARE_MAX = 4  # float32 rows may take this part of memory, by --kv-dtype auto
CTX_LEN_MIN = 512
KV_DTYPES = {"f32": "float32", "f16": "float16"}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All in bytes. Rows are touched as they are used; the prefix cache fills up to its bound."""

    row_dtype: str
    context_length: int
    lanes: int
    weights: int
    lanes_rows: int
    lanes_state: int
    prefix: int
    prefix_wanted: int
    machine: int

    @property
    def total(self) -> int:
        return PROGRAM_BYTES + self.weights + self.lanes_rows + self.lanes_state + self.prefix

    def lines(self) -> list[str]:
        kv = "f32" if self.row_dtype == "float32" else "f16"
        lanes = f"{self.lanes} lanes of {self.context_length:,} tokens ({kv} KV cache)"
        lines = [
            f"Memory: weights {mib(self.weights)}, {lanes} up to "
            f"{mib(self.lanes_rows + self.lanes_state)}, prefix cache up to {mib(self.prefix)}, "
            f"in all {mib(self.total)} of {mib(self.machine)}"
        ]
        if self.prefix < self.prefix_wanted:
            lines.append(
                f"The prefix cache gets {mib(self.prefix)} of the {mib(self.prefix_wanted)} "
                "wanted: that is what the machine has left"
            )
        return lines


def context_length_of(model_max: int, default: int, wanted: int | None) -> int:
    """Tokens a sequence may have. Raises BadRequest past what the model was made for."""
    if wanted is None:
        return min(default, model_max)
    if wanted > model_max:
        raise BadRequest(
            f"--ctx-len {wanted:,} is more than the model's {model_max:,} tokens",
            fix=f"start with --ctx-len {model_max} or less",
            param="ctx-len",
        )
    return max(wanted, min(CTX_LEN_MIN, model_max))


def plan_memory(
    layouts: Mapping[str, MemoryLayout],
    *,
    weights_bytes: int,
    context_length: int,
    lanes: int,
    kv_dtype: str,
    prefix_bytes: int,
    machine_bytes: int,
) -> MemoryPlan:
    """The plan, with the prefix cache cut to what is left. Raises NoRoom if the rest does not fit.

    `kv_dtype` is f32, f16 or auto: f32 while all lanes' rows fit in a quarter of memory.
    """
    rows = {dtype: lanes * context_length * lay.row_bytes for dtype, lay in layouts.items()}
    if kv_dtype == "auto":
        fits = rows["float32"] * ROWS_SHARE_MAX <= machine_bytes
        row_dtype = "float32" if fits else "float16"
    else:
        row_dtype = KV_DTYPES[kv_dtype]
    state = lanes * layouts[row_dtype].state_bytes
    needed = PROGRAM_BYTES + weights_bytes + rows[row_dtype] + state
    if needed > machine_bytes:
        raise NoRoom(
            f"the model with {lanes} lanes of {context_length:,} tokens needs {mib(needed)}, "
            f"this machine has {mib(machine_bytes)}",
            fix=_advice(row_dtype, lanes, machine_bytes - (needed - rows[row_dtype]), rows),
        )
    return MemoryPlan(
        row_dtype=row_dtype,
        context_length=context_length,
        lanes=lanes,
        weights=weights_bytes,
        lanes_rows=rows[row_dtype],
        lanes_state=state,
        prefix=min(prefix_bytes, machine_bytes - needed),
        prefix_wanted=prefix_bytes,
        machine=machine_bytes,
    )


def _advice(row_dtype: str, lanes: int, left: int, rows: Mapping[str, int]) -> str:
    if left <= 0:
        return "take a smaller model"
    advice = []
    if row_dtype == "float32":
        advice.append("--kv-dtype f16")
    if lanes > 1:
        advice.append(f"--lanes {max(1, lanes * left // rows[row_dtype])}")
    return " or ".join([*advice, "a smaller --ctx-len"])
