"""How many bytes of host memory a stream moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from npu_kernels.txn.geometry import Geometry
from npu_kernels.txn.operations import Operation
from npu_kernels.txn.shim import Shims, Started


@dataclass(frozen=True, slots=True)
class Traffic:
    bytes_read: int
    bytes_written: int


def traffic(operations: Iterable[Operation], device: Geometry) -> Traffic:
    shims, words = Shims(device), {True: 0, False: 0}
    for number, operation in enumerate(operations):
        for event in shims.apply(operation, f"operation {number}"):
            if isinstance(event, Started):
                task = event.task
                once = sum(transfer.descriptor.length for transfer in task.transfers)
                words[task.channel.fills] += once * task.repeats
    return Traffic(4 * words[True], 4 * words[False])
