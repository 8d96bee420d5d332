"""What goes wrong: what the caller did, and what is made to happen."""

from __future__ import annotations

from enum import Enum


class Misuse(Exception):
    """The real module would segfault here, ignore this, or do something else without a word.

    No RuntimeError, so that nobody who handles pyxrt's errors handles it by accident.
    """


class Fault(Enum):
    """What a test makes happen to a run (Machine.next_run)."""

    ERROR = "the command fails"
    ABORT = "the firmware refuses the command; the context is dead"
    TIMEOUT = "the array hangs until the driver resets it (TDR); the context is dead"
    SLOW = "the host's patience ends first: wait(ms) says TIMEOUT, the command still runs"
    HANG = "wait never returns"
    CRASH = "the process dies of SIGSEGV"
