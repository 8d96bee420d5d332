"""What the prefix cache's routes answer, as JSON."""

from dataclasses import asdict
from typing import Any

from flm.core.finding import Finding
from flm.engine.residency import Resident
from flm.prefix.explain import Explanation
from flm.prefix.overview import Overview, Stretch, beginning
from flm.prefix.volatility import Volatile
from flm.text.tokenizer import Tokenizer

PREVIEW_TOKENS = 16
TEXTS = ("before", "ours", "theirs")  # of an explanation


def overview_reply(
    view: Overview, resident: Resident, changes: list[Volatile], *, text: bool
) -> dict[str, Any]:
    """`text`: with the beginning of each stretch."""
    tokenizer = resident.tokenizer if text else None
    return {
        "object": "prefix_cache",
        "model": resident.card.tag,
        "tree": [_stretch(each, tokenizer) for each in view.stretches],
        "truncated": view.truncated,
        "totals": {**asdict(view.totals), "row_bytes": view.row_bytes},
        "volatility": [_volatile(each) for each in changes],
    }


def _stretch(stretch: Stretch, tokenizer: Tokenizer | None) -> dict[str, Any]:
    fields = {
        "above": stretch.above,
        "start": stretch.start,
        "end": stretch.end,
        "tokens": stretch.end - stretch.start,
        "kind": stretch.kind.value if stretch.kind else None,
        "tiers": stretch.tiers,
        "slot": stretch.slot,
        "bytes_own": stretch.bytes_own,
        "bytes_shared": stretch.bytes_shared,
        "age_s": _seconds(stretch.age_s),
        "idle_s": _seconds(stretch.idle_s),
        "awaited_s": _seconds(stretch.awaited_s),
        "hits": stretch.hits,
        "leases": stretch.leases,
    }
    if tokenizer:
        tokens = beginning(stretch, PREVIEW_TOKENS)
        fields["text"] = tokenizer.decode(tokens, skip_special=False) if tokens else None
    return fields


def explanation_reply(
    resident: Resident,
    finding: Finding,
    tiers: tuple[str | None, ...],
    explanation: Explanation | None,
    changes: list[Volatile],
) -> dict[str, Any]:
    prompt, why = finding.prompt, explanation
    nothing = dict.fromkeys(("class", "differs_at", "read", "place", "fate", "advice", *TEXTS))
    boundaries = zip(prompt.boundaries, tiers, strict=True)
    return {
        "object": "prefix_cache.explanation",
        "model": resident.card.tag,
        "prompt_tokens": len(prompt.tokens),
        "would_reuse": {"tokens": finding.offset, "tier": finding.tier},
        "boundaries": [
            {"offset": each.offset, "kind": each.kind.value, "kept": tier}
            for each, tier in boundaries
        ],
        **(difference(why) | texts(why) if why else nothing),
        "volatility": [_volatile(each) for each in changes],
    }


def difference(why: Explanation) -> dict[str, Any]:
    """Without a word of the prompts."""
    return {
        "class": why.change.value,
        "differs_at": why.differs_at,
        "read": why.read,
        "place": {"path": str(why.place), "offset": why.place.offset},
        "fate": {"what": str(why.fate), "offset": why.fate.offset} if why.fate else None,
        "advice": why.advice,
    }


def texts(why: Explanation) -> dict[str, Any]:
    """Around what differs."""
    return {name: getattr(why, name) for name in TEXTS}


def _volatile(row: Volatile) -> dict[str, Any]:
    return {
        "place": row.place,
        "offset": row.offset,
        "class": row.change.value,
        "times": row.times,
        "requests": row.requests,
        "head_tokens": row.head,
        "advice": row.advice,
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
