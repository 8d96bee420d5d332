"""The APIs that a chat is asked for in: what their bodies mean, and how their replies are worded.

One more is one more entry here, and its path in endpoints.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from flm.core.chat import Conversation
from flm.core.picture import Sight
from flm.core.request import SamplingParams
from flm.engine.album import KEEPS_NOTHING, Album
from flm.engine.residency import Resident
from flm.engine.terms import Terms
from flm.server.apis import anthropic, ollama, openai, responses
from flm.server.apis.anthropic import CountBody, MessagesBody
from flm.server.apis.anthropic_replies import MessageReplies
from flm.server.apis.bodies import AskingBody
from flm.server.apis.ollama import OllamaChatBody, OllamaGenerateBody
from flm.server.apis.ollama_replies import LineReplies
from flm.server.apis.openai import ChatBody
from flm.server.apis.openai_replies import CHAT, ChunkReplies
from flm.server.apis.responses import ResponsesBody
from flm.server.apis.responses_replies import ResponseReplies
from flm.server.sse import Replies
from flm.settings import Settings

BodyT = TypeVar("BodyT", bound=AskingBody)
BodyT_contra = TypeVar("BodyT_contra", bound=AskingBody, contravariant=True)


class Meaning(Protocol[BodyT_contra]):
    def __call__(
        self,
        body: BodyT_contra,
        *,
        model: str,
        settings: Settings,
        sight: Sight | None = None,
        album: Album = KEEPS_NOTHING,
    ) -> Conversation | str: ...


def _no_reply(body: AskingBody, resident: Resident) -> Mapping[str, Any]:
    raise AssertionError(f"{type(body).__name__} always asks for a reply")


@dataclass(frozen=True, slots=True)
class Api(Generic[BodyT]):
    """`refuse` raises UnsupportedFeature; `conversation` BadRequest, too. A text that it gives is
    read as it is. `loaded` is told to who asks for no reply, only that the model be there. `pings`:
    its streams may have them before they have begun.
    """

    body: type[BodyT]
    refuse: Callable[[BodyT], None]
    conversation: Meaning[BodyT]
    terms: Callable[[BodyT, SamplingParams], Terms]
    replies: Callable[[BodyT, Resident], Replies]
    loaded: Callable[[BodyT, Resident], Mapping[str, Any]] = _no_reply
    pings: bool = True


CHATS = Api(
    ChatBody,
    openai.refuse_unsupported,
    openai.conversation,
    openai.terms,
    partial(ChunkReplies, CHAT),
)
RESPONSES = Api(
    ResponsesBody,
    responses.refuse_unsupported,
    responses.conversation,
    responses.terms,
    ResponseReplies,
)
MESSAGES = Api(
    MessagesBody,
    anthropic.refuse_unsupported,
    anthropic.conversation,
    anthropic.terms,
    MessageReplies,
)
COUNTS = Api(  # to be counted, not answered
    CountBody,
    anthropic.refuse_unsupported,
    anthropic.conversation,
    lambda body, defaults: Terms(defaults),
    MessageReplies,
)
OLLAMA_CHATS = Api(
    OllamaChatBody,
    ollama.refuse_unsupported,
    ollama.conversation,
    ollama.terms,
    partial(LineReplies, chat=True),
    lambda body, resident: LineReplies(body, resident, chat=True).loaded(),
    pings=False,
)
OLLAMA_PROMPTS = Api(
    OllamaGenerateBody,
    ollama.refuse_unsupported,
    ollama.prompt,
    ollama.terms,
    partial(LineReplies, chat=False),
    lambda body, resident: LineReplies(body, resident, chat=False).loaded(),
    pings=False,
)
