"""What a dialect is: how a model writes thoughts, tool calls and content, as text.

Invariants of every reader:
  * The same text in other pieces gives the same deltas, once neighbours of a kind are joined.
  * The arguments of a call are JSON text, whatever the model wrote; only `cut` leaves them open.
  * Text that is no call is content or thought: nothing is lost, and no text raises.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flm.core.chat import Delta
from flm.text.lark import Lark

ToolList = Sequence[Mapping[str, Any]]


class Reader(Protocol):
    """Of one reply. `thinking`: whether a thought is open."""

    @property
    def thinking(self) -> bool: ...

    def add(self, text: str) -> list[Delta]:
        """What is now known, in order."""
        ...

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """What was held back. `cut`: the reply was not at its end, so nothing is completed."""
        ...


# (lark, tools, most): the grammar of up to `most` calls of these tools, as far as the dialect has
# several.
Calls = Callable[[Lark, ToolList, int], str]


@dataclass(frozen=True, slots=True)
class Dialect:
    """`open(tools, thinking)` begins to read a reply. No tools: nothing is taken for a call;
    `thinking`: the prompt has already opened a thought.

    `marks` are text to the reader even where they are special tokens, which are not shown
    otherwise; `call_marks` only where there are tools. `thought` opens and closes one, `answer`
    comes before content. `calls` None: no grammar makes it call.
    """

    name: str
    open: Callable[[ToolList, bool], Reader]
    marks: tuple[str, ...]
    call_marks: tuple[str, ...] = ()
    thought: tuple[str, str] = ("<think>", "</think>")
    answer: str = ""
    calls: Calls | None = None
