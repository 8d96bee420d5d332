"""Which dialect a model writes: what its chat template shows it of tools and calls tells."""

from collections.abc import Callable

from flm.core.chat import Conversation, Message, ToolCall
from flm.errors import FlmError
from flm.text.dialects.dialect import Dialect
from flm.text.dialects.gemma import FUNCTION_GEMMA, GEMMA3, GEMMA4
from flm.text.dialects.granite import GRANITE
from flm.text.dialects.harmony import HARMONY
from flm.text.dialects.hermes import HERMES, QWEN
from flm.text.dialects.lfm import LFM
from flm.text.dialects.llama import LLAMA
from flm.text.dialects.phi import PHI
from flm.text.dialects.tagged import PLAIN

# The first whose marks are all there. What another's text may hold as well comes later.
ORDER: tuple[tuple[tuple[str, ...], Dialect], ...] = (
    (("<|channel|>", "<|message|>"), HARMONY),
    (("<|turn>", "<|channel>"), GEMMA4),
    (("<|tool_call>",), GEMMA4),
    (("<start_function_call>",), FUNCTION_GEMMA),
    (("<start_function_declaration>",), FUNCTION_GEMMA),
    (("<|tool_call_start|>",), LFM),
    (("<|tool_list_start|>",), LFM),
    (("<tool_call>", "<function="), QWEN),
    (("<tool_call>",), HERMES),
    (("<|/tool_call|>",), PHI),
    (("<|/tool|>",), PHI),
    (("functools[",), PHI),
    (("<|tool_call|>",), GRANITE),
    (("```tool_code",), GEMMA3),
    (("<|python_tag|>",), LLAMA),
    (('"parameters": dictionary',), LLAMA),
    (('{"name": "probe", "parameters"',), LLAMA),
)
ASKED = (Message("user", "hello"),)
CALLED = Message("assistant", None, tool_calls=(ToolCall("call00000", "probe", '{"key": "v"}'),))
TOLD = Message("tool", "found", tool_call_id="call00000", name="probe")
TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probes.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "Where."}},
            "required": ["key"],
        },
    },
}


def recognise(render: Callable[[Conversation], str]) -> Dialect:
    """PLAIN where the model is told of no tools: nothing it writes is a call then."""

    told, untold = _rendered(render), _rendered(render, told=False)
    text = told + _rendered(render, CALLED, TOLD)
    dialect = next((each for marks, each in ORDER if all(m in text for m in marks)), PLAIN)
    if told == untold and dialect.call_marks:
        return PLAIN
    return dialect


def tells_of_tools(render: Callable[[Conversation], str]) -> bool:
    """Whether a model reads which tools there are."""
    return _rendered(render) != _rendered(render, told=False)


def _rendered(render: Callable[[Conversation], str], *more: Message, told: bool = True) -> str:
    """Empty where the template refuses."""
    try:
        return render(Conversation((*ASKED, *more), tools=(TOOL,) if told else ()))
    except FlmError:
        return ""
