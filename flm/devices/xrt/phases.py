"""The phases a model runs in: decode takes a token at a time, prefill a chunk of a prompt. Each has
a plan, and a package of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flm.devices.xrt.graph import Graph, read
from flm.devices.xrt.plan import CHUNK, Plan, plan_for_prompts, plan_of


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    name: str
    graph: Graph
    plan: Plan


def phases_of(path: Path, capacity: int) -> tuple[Phase, Phase | None]:
    """Decode, and prefill if there is a plan for it. `capacity`: rows that a lane may hold."""
    one, many = read(path, capacity), read(path, capacity, CHUNK)
    plan = plan_for_prompts(many)
    return Phase("decode", one, plan_of(one)), Phase("prefill", many, plan) if plan else None
