"""Whether to think and how hard, from all the ways that OpenAI's clients say it."""

from typing import Any

from flm.server.apis.bodies import Body, effort_known


class Reasoning(Body):
    """`summary` is for /v1/responses: thoughts are told as one."""

    effort: str | None = None
    enabled: bool | None = None
    summary: str | None = None


class ThinkingBody(Body):
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    think: bool | str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def thinking(body: ThinkingBody) -> tuple[str | None, bool | None, dict[str, Any]]:
    """(effort, whether to think, what else the template is given).

    A plain yes or no outranks an effort; an effort other than "none" asks for thought.
    """
    kwargs = dict(body.chat_template_kwargs or {})
    reasoning = body.reasoning or Reasoning()
    given = {
        "reasoning_effort": body.reasoning_effort,
        "reasoning.effort": reasoning.effort,
        "think": body.think if isinstance(body.think, str) else None,
        "chat_template_kwargs.reasoning_effort": kwargs.pop("reasoning_effort", None),
    }
    known = (effort_known(effort, param=param) for param, effort in given.items() if effort)
    effort = next(known, None)
    switches = (
        kwargs.pop("enable_thinking", None),
        kwargs.pop("thinking", None),
        body.enable_thinking,
        body.think if isinstance(body.think, bool) else None,
        reasoning.enabled,
        None if effort is None else effort != "none",
    )
    whether = next((bool(switch) for switch in switches if switch is not None), None)
    return None if effort == "none" else effort, whether, kwargs
