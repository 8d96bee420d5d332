"""Which system and developer messages a template gets to see, and where.

What goes to the beginning of a conversation that has begun changes all that was read after it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from flm.core.chat import Message
from flm.errors import BadRequest

INSTRUCTING = ("system", "developer")
# Claude Code's first line, which changes with every request and says nothing to a model.
BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n*", re.IGNORECASE)
BETWEEN = "\n\n"  # texts that become one


def arranged(
    messages: Sequence[Message], *, system: str, developer: str, places: Sequence[str] | None = None
) -> tuple[Message, ...]:
    """The messages as they are rendered: none is a developer's any more.

    `system` and `developer` are the settings of these names, `places` is where in the body each
    message was. Raises BadRequest for a message that they refuse.
    """
    placed = _without_billing(messages, places or [f"messages[{n}]" for n in range(len(messages))])
    _refuse(placed, system=system, developer=developer)
    messages = [message for _, message in placed]
    if developer == "inplace":
        messages = [_as_system(message) for message in messages]
    moved = [_as_system(message) for message in messages if message.role == "developer"]
    others = [message for message in messages if message.role != "developer"]
    first = list(takewhile(lambda message: message.role == "system", others))
    rest = others[len(first) :]
    if system == "merge":
        first = joined(first)
    if developer == "into-system":
        first = joined([*first, *moved])
    else:
        first += joined(moved) if developer == "one-after-system" else moved
    return (*first, *rest)


def _refuse(placed: Sequence[tuple[str, Message]], *, system: str, developer: str) -> None:
    for number, (place, message) in enumerate(placed):
        if message.role == "developer" and developer == "reject":
            raise BadRequest(
                f"{place} is a developer's, and this server takes none",
                fix="send it as a system message, or start with --developer-message-policy inplace",
                param=place,
            )
        if message.role == "system" and number and system == "strict":
            raise BadRequest(
                f"{place} is a system message, and this server takes one only as the first",
                fix="send it first, or start with --system-message-policy merge",
                param=place,
            )


def _as_system(message: Message) -> Message:
    return replace(message, role="system") if message.role == "developer" else message


def _without_billing(
    messages: Sequence[Message], places: Sequence[str]
) -> list[tuple[str, Message]]:
    """Each with its place; a message that was nothing but the line is gone."""
    placed = list(zip(places, messages, strict=True))
    index = next((at for at, each in enumerate(messages) if each.role in INSTRUCTING), None)
    if index is not None and (found := BILLING.match(messages[index].content or "")):
        content = (messages[index].content or "")[found.end() :]
        marks = tuple(mark - found.end() for mark in messages[index].marks if mark > found.end())
        rest = replace(messages[index], content=content, marks=marks)
        placed[index : index + 1] = [(places[index], rest)] if content else []
    return placed


def joined(messages: Sequence[Message]) -> list[Message]:
    """One message, or none of none; the first says whose it is and what it is called."""
    if len(messages) < 2:
        return list(messages)
    content, marks, pictures = "", [], []
    for message in messages:
        if message.content or message.pictures:
            content += BETWEEN if content else ""
            marks += [len(content) + mark for mark in message.marks]
            pictures += [(len(content) + at, picture) for at, picture in message.pictures]
            content += message.content or ""
    return [replace(messages[0], content=content, marks=tuple(marks), pictures=tuple(pictures))]
