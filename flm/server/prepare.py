"""From a body to answers that do not run yet: what all routes that take a prompt read alike."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flm import console
from flm.engine.answer import Answer
from flm.engine.conversation import Conversations
from flm.engine.residency import Resident
from flm.errors import BadRequest, PromptTooLong
from flm.server.apis.bodies import AskingBody
from flm.server.apis.entries import CHATS, Api, BodyT
from flm.server.apis.openai import CHOICES_MAX, CompletionBody, refuse_unsupported, terms
from flm.server.apis.openai_replies import TEXT, ChunkReplies
from flm.server.domains import domain_of, owner_of
from flm.server.faults import valid
from flm.server.residence.residence import Residence
from flm.server.sse import Replies
from flm.settings import Settings
from flm.settings import key as key_of

COUNTED = {"messages": "messages_max", "input": "messages_max", "tools": "tools_max"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request understood: for each prompt its answers, not yet running; or what it is told, where
    it asks for none.
    """

    body: AskingBody
    replies: Replies
    resident: Resident
    prompts: list[list[Answer]]
    told: Mapping[str, Any] | None = None


class Preparation:
    """Parsing, rendering and encoding grow with the prompt: none of it is for the loop that
    streams. `fields` are a body's, `key` is the API key it came with.
    """

    def __init__(self, settings: Settings, residence: Residence) -> None:
        self._settings = settings
        self._residence = residence
        self._said: set[tuple[str, str]] = set()  # of which models, and on what

    def either(self, fields: Mapping[str, Any], key: str | None) -> Prepared:
        """As a plain completion if it has a prompt, else as a chat."""
        return self.text(fields, key) if "prompt" in fields else self.chat(CHATS, fields, key)

    def chat(self, api: Api[BodyT], fields: Mapping[str, Any], key: str | None) -> Prepared:
        body = self._valid(api.body, fields)
        api.refuse(body)
        resident = self._residence.find(body.model)
        self._warn_of_window(body.window_wanted, resident)
        replies = api.replies(body, resident)
        if not body.asks:
            return Prepared(body, replies, resident, [], api.loaded(body, resident))
        asked = api.conversation(
            body,
            model=resident.card.tag,
            settings=self._settings,
            sight=resident.sight,
            album=resident.album,
        )
        agreed = replace(api.terms(body, resident.card.sampling), owner=owner_of(key))
        conversations = Conversations(resident)
        domain = self._domain(key, body.cache_salt)
        if isinstance(asked, str):
            answers = conversations.text(asked, agreed, request_id=replies.id, domain=domain)
        else:
            self._warn_of_tools(len(asked.tools), resident)
            answers = conversations.chat(asked, agreed, request_id=replies.id, domain=domain)
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
        asked = replace(terms(body, resident.card.sampling), owner=owner_of(key))
        ids = [f"{replies.id}-p{index}" if index else replies.id for index in range(len(prompts))]
        conversations = Conversations(resident)
        domain = self._domain(key, body.cache_salt)
        answers = [
            conversations.text(prompt, asked, request_id=own, domain=domain)
            for prompt, own in zip(prompts, ids, strict=True)
        ]
        return Prepared(body, replies, resident, answers)

    def _valid(self, kind: type[BodyT], fields: Mapping[str, Any]) -> BodyT:
        for name, limit in COUNTED.items():
            _refuse_many(name, fields.get(name), limit, getattr(self._settings, limit))
        return valid(kind, fields)

    def _warn_of_tools(self, tools: int, resident: Resident) -> None:
        if tools and not resident.template.tells_of_tools:
            told = f"is told of no tools, for its chat template writes none: the {tools} that a "
            self._warn_once(resident, "tools", told + "client sent are left out")

    def _warn_of_window(self, wanted: int, resident: Resident) -> None:
        if wanted > resident.context_length:
            told = f"was loaded with a window of {resident.context_length:,} tokens: a num_ctx of "
            self._warn_once(resident, "num_ctx", told + f"{wanted:,} does not widen it")

    def _warn_once(self, resident: Resident, topic: str, told: str) -> None:
        """For agents send the same again and again."""
        if (resident.card.tag, topic) not in self._said:
            self._said.add((resident.card.tag, topic))
            console.warn(f"{resident.card.tag} {told} (this is said once)")

    def _domain(self, key: str | None, salt: str | None) -> str:
        return domain_of(key, salt, shared=self._settings.prefix_shared)


def _refuse_many(name: str, given: object, limit: str, count_max: int) -> None:
    """Before they are looked at one by one."""
    if isinstance(given, list) and len(given) > count_max:
        raise BadRequest(
            f"{name} has {len(given):,} entries; {count_max:,} are read",
            fix=f"send fewer, or raise {key_of(limit)} in flm.toml",
            param=name,
        )
