"""Instruction streams (TXN): what the NPU's firmware does for one dispatch, as 32-bit words.

operations = parse(words)
check(operations, NPU2, [4096, 4096])  # bytes of each buffer argument; a StreamFault names the rule
print(listing(words))
words = encode(operations)
"""

from npu_kernels.txn.check import Finding, check, check_words, findings
from npu_kernels.txn.faults import StreamFault
from npu_kernels.txn.geometry import NPU1, NPU2, Geometry
from npu_kernels.txn.listing import listing
from npu_kernels.txn.operations import (
    Await,
    BlockWrite,
    CreateScratchpad,
    Custom,
    LoadPdi,
    MaskPoll,
    MaskWrite,
    Noop,
    Operation,
    Patch,
    Preempt,
    UpdateRegister,
    Write,
)
from npu_kernels.txn.sites import Site, apply, find
from npu_kernels.txn.traffic import Traffic, traffic
from npu_kernels.txn.words import Header, Words, encode, header_of, parse

__all__ = [
    "NPU1",
    "NPU2",
    "Await",
    "BlockWrite",
    "CreateScratchpad",
    "Custom",
    "Finding",
    "Geometry",
    "Header",
    "LoadPdi",
    "MaskPoll",
    "MaskWrite",
    "Noop",
    "Operation",
    "Patch",
    "Preempt",
    "Site",
    "StreamFault",
    "Traffic",
    "UpdateRegister",
    "Words",
    "Write",
    "apply",
    "check",
    "check_words",
    "encode",
    "find",
    "findings",
    "header_of",
    "listing",
    "parse",
    "traffic",
]
