"""Why prompts are read again: a line in the log, and what the volatility map learns of it."""

from collections.abc import Callable
from dataclasses import replace

from flm import console
from flm.core.chat import Conversation
from flm.core.event import Usage
from flm.core.finding import Finding
from flm.engine.answer import Answer
from flm.engine.residency import Resident
from flm.prefix.explain import Explanation, explain


def reason(
    resident: Resident, conversation: Conversation | None, finding: Finding
) -> Explanation | None:
    """None where there is nothing to explain. Takes a few ms: not for the event loop."""
    text = resident.tokenizer.decode(finding.prompt.tokens, skip_special=False)
    return explain(conversation, text, finding, resident.tokenizer)


def note_reason(
    resident: Resident, answer: Answer, explained: Callable[[Answer, Explanation], None]
) -> None:
    """Of an answer that has ended. On any thread; nothing that goes wrong here is worth a reply."""
    if not resident.reuse:
        return
    request = answer.request
    try:
        finding = _as_it_was(answer.finding, answer.usage)
        explanation = reason(resident, answer.conversation, finding) if finding else None
        known = finding or Finding(request.prompt, 0, None, 0, 0, b"", (), 0)
        resident.volatility.note(known, explanation)
    except Exception as error:  # its words may be the client's
        console.debug(f"no explanation of {request.id}: {type(error).__name__}")
        return
    if explanation:
        console.say(f"{explanation.line()}  {request.id}")
        explained(answer, explanation)


def _as_it_was(finding: Finding | None, usage: Usage | None) -> Finding | None:
    """What was found at admission may have grown since: others were reading the same."""
    if finding is None or usage is None or usage.cached_tokens <= finding.offset:
        return finding
    cached = usage.cached_tokens
    finding = replace(
        finding,
        offset=cached,
        tier=usage.tier,
        read=max(cached, finding.read),
        fates=tuple(fate for fate in finding.fates if fate.offset > cached),
    )
    return finding if cached <= finding.seen else replace(finding, seen=cached, theirs=b"")
