"""From a body to answers that do not run yet: what all routes that take a prompt read alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from flm import console
from flm.core.chat import Conversation
from flm.engine.answer import Answer
from flm.engine.conversation import Conversations
from flm.engine.residency import Resident
from flm.errors import BadRequest, PromptTooLong
from flm.server.apis import CHATS, Api, BodyT
from flm.server.bodies import AskingBody
from flm.server.domains import domain_of
from flm.server.faults import not_valid
from flm.server.openai import CHOICES_MAX, CompletionBody, refuse_unsupported, terms
from flm.server.replies import TEXT, ChunkReplies
from flm.server.residence import Residence
from flm.server.sse import Replies
from flm.settings import Settings


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request understood: for each prompt its answers, not yet running."""

    body: AskingBody
    replies: Replies
    resident: Resident
    prompts: list[list[Answer]]


class Preparation:
    """Parsing, rendering and encoding grow with the prompt: none of it is for the loop that
    streams. `fields` are a body's, `key` is the API key it came with.
    """

    def __init__(self, settings: Settings, residence: Residence) -> None:
        self._settings = settings
        self._residence = residence
        self._untold: set[str] = set()  # models whose clients' tools were said to be left out

    def either(self, fields: Mapping[str, Any], key: str | None) -> Prepared:
        """As a plain completion if it has a prompt, else as a chat."""
        return self.text(fields, key) if "prompt" in fields else self.chat(CHATS, fields, key)

    def chat(self, api: Api[BodyT], fields: Mapping[str, Any], key: str | None) -> Prepared:
        body = self._valid(api.body, fields)
        api.refuse(body)
        resident = self._residence.find(body.model)
        asked = api.conversation(body, model=resident.card.tag, settings=self._settings)
        self._warn_of_tools(asked, resident)
        replies = api.replies(body, resident)
        answers = Conversations(resident).chat(
            asked,
            api.terms(body, resident.card.sampling),
            request_id=replies.id,
            domain=self.domain(key, body.cache_salt),
        )
        return Prepared(body, replies, resident, [answers])

    def count(self, api: Api[BodyT], fields: Mapping[str, Any], key: str | None) -> int:
        """The tokens that a chat has, too many or not."""
        try:
            prepared = self.chat(api, fields, key)
        except PromptTooLong as error:
            return error.prompt_tokens
        return len(prepared.prompts[0][0].request.prompt.tokens)

    def text(self, fields: Mapping[str, Any], key: str | None) -> Prepared:
        body = self._valid(CompletionBody, fields)
        refuse_unsupported(body)
        resident = self._residence.find(body.model)
        given = body.prompt
        several = isinstance(given, list) and given and not isinstance(given[0], int)
        prompts: list[Any] = given if several else [given]  # type: ignore[assignment]
        if len(prompts) * (body.n or 1) > CHOICES_MAX:
            raise BadRequest(
                f"prompt and n ask for {len(prompts) * (body.n or 1)} replies at once",
                fix=f"ask for up to {CHOICES_MAX}",
                param="prompt",
            )
        replies = ChunkReplies(TEXT, body, resident)
        asked = terms(body, resident.card.sampling)
        ids = [f"{replies.id}-p{index}" if index else replies.id for index in range(len(prompts))]
        conversations = Conversations(resident)
        domain = self.domain(key, body.cache_salt)
        answers = [
            conversations.text(prompt, asked, request_id=own, domain=domain)
            for prompt, own in zip(prompts, ids, strict=True)
        ]
        return Prepared(body, replies, resident, answers)

    def _valid(self, kind: type[BodyT], fields: Mapping[str, Any]) -> BodyT:
        _refuse_many(fields.get("messages"), self._settings.messages_max)
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            raise not_valid(error, fields) from error

    def _warn_of_tools(self, asked: Conversation, resident: Resident) -> None:
        """Once a model, for agents send the same tools again and again."""
        tag = resident.card.tag
        if not asked.tools or tag in self._untold or resident.template.tells_of_tools:
            return
        self._untold.add(tag)
        console.warn(
            f"{tag} is told of no tools, for its chat template writes none: the "
            f"{len(asked.tools)} that a client sent are left out (this is said once)"
        )

    def domain(self, key: str | None, salt: str | None) -> str:
        return domain_of(key, salt, shared=self._settings.prefix_shared)


def _refuse_many(messages: object, messages_max: int) -> None:
    """Before they are looked at one by one."""
    if isinstance(messages, list) and len(messages) > messages_max:
        raise BadRequest(
            f"messages has {len(messages):,} entries; {messages_max:,} are read",
            fix="send fewer, or raise messages-max in flm.toml",
            param="messages",
        )
