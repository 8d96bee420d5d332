"""On what terms a reply is given: how it is chosen, when it ends, and what it is held to."""

from collections.abc import Sequence
from dataclasses import dataclass

from flm.core.grammar import Grammar
from flm.core.request import Priority, SamplingParams
from flm.errors import BadRequest
from flm.text.constraint import CALLS_MAX, Format, Thought, reply_grammar
from flm.text.dialects.dialect import Dialect, ToolList
from flm.text.grammar import Grammars

ANY_TOOL: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """How answers are chosen, ended and read. `max_tokens` None: as many as the context length
    leaves; `tool_calls` False: what looks like one is text.

    After its thought, if there is one, a reply is held to `format` in what it says where it calls
    nothing, and to `must_call`: one of these tools, or ANY_TOOL. `calls_max` None: as many calls as
    the model makes.
    """

    sampling: SamplingParams
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    tool_calls: bool = True
    priority: Priority = Priority.INTERACTIVE
    format: Format | None = None
    must_call: tuple[str, ...] | None = None
    calls_max: int | None = None
    owner: str = ""  # whose request it is, among whom lanes are dealt out


def held_to(
    terms: Terms,
    grammars: Grammars,
    dialect: Dialect,
    thought: Thought,
    tools: ToolList = (),
    begun: str = "",
) -> Grammar | None:
    """What a reply has to be, if anything. `tools` are the prompt's, `begun` is what the client
    wrote of it. Raises BadRequest, UnsupportedFeature.
    """
    if terms.must_call is not None:
        tools = _wanted(tools, terms.must_call)
    elif not terms.format:
        return None
    for given, param, reason in (
        (begun, "messages", "goes on from the last message of the assistant"),
        (terms.ignore_eos, "ignore_eos", "does not end where it is complete"),
    ):
        if given:
            raise BadRequest(
                f"a reply that {reason} cannot be held to a format or to calls",
                fix="leave one of both out",
                param=param,
            )
    return reply_grammar(
        grammars,
        dialect,
        thought,
        format=terms.format if terms.must_call is None else None,
        tools=tools,
        calls_max=terms.calls_max or CALLS_MAX,
    )


def _wanted(tools: ToolList, names: Sequence[str]) -> ToolList:
    """Those of these names, or all. Raises BadRequest for one that is not there."""
    known = {tool["function"]["name"]: tool for tool in tools}
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        what = f"{unknown[0]!r:.80}, which is none of the tools" if unknown else "a call of no tool"
        raise BadRequest(
            f"tool_choice asks for {what}", fix="name one of tools", param="tool_choice"
        )
    return [known[name] for name in names or known]
