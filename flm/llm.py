"""A loaded model in a few lines of Python, for scripts, tests and the bench.

with LLM.load("smollm2:135m") as llm:
    print(llm.chat("Say hello.").text)
    for delta in llm.stream("Count to five.", temperature=0):
        print(delta.text, end="")

A message's content may be a list of texts and pictures, where the model sees:
{"role": "user", "content": [Path("photo.jpg"), "What is this?"]}.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

from flm.core.chat import Conversation, Delta, DeltaKind, Message, ToolCall, text_of
from flm.core.event import Event, FinishReason, Usage
from flm.core.picture import Picture
from flm.engine.answer import Answer
from flm.engine.conversation import Conversations
from flm.engine.reader import Reader
from flm.engine.residency import Resident, load
from flm.engine.terms import Terms
from flm.errors import BadRequest
from flm.settings import Settings, load_settings
from flm.text.constraint import Format

Messages = str | Sequence[Message | Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    reasoning: str
    reason: FinishReason
    usage: Usage
    tool_calls: tuple[ToolCall, ...] = ()


class Stream(Iterator[Delta]):
    """The deltas of a reply as they come; `reply` once they are through. `close` stops it."""

    def __init__(self, conversations: Conversations, answer: Answer) -> None:
        self._conversations = conversations
        self._answer = answer
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._said: list[Delta] = []
        self._due: list[Delta] = []
        conversations.submit(answer, self._events.put)

    def __next__(self) -> Delta:
        while not self._due:
            if self._answer.finished:
                raise StopIteration
            self._due = self._answer.read(self._events.get())
            if self._answer.full and not self._answer.finished:
                self.close()
            self._said += self._due
            if self._answer.finished:
                self._conversations.ended(self._answer)
                self._read_ahead()
        return self._due.pop(0)

    def close(self) -> None:
        self._conversations.cancel(self._answer)

    @property
    def reply(self) -> Reply:
        """All of it; waits for the end."""
        for _ in self:
            pass
        assert self._answer.reason is not None
        assert self._answer.usage is not None
        return Reply(
            text=text_of(self._said, DeltaKind.CONTENT),
            reasoning=text_of(self._said, DeltaKind.REASONING),
            reason=self._answer.reason,
            usage=self._answer.usage,
            tool_calls=self._answer.tool_calls,
        )

    def _read_ahead(self) -> None:
        """Of its own, for whoever reads the stream goes on at once."""
        read_ahead = self._conversations.read_ahead
        Thread(target=read_ahead, args=(self._answer,), name="read ahead", daemon=True).start()


class LLM:
    """Terms are `max_tokens`, `stop`, `ignore_eos`, `schema` (the reply is JSON, valid by it),
    `must_call` (names of tools, one of which is called; none: any of them), `calls_max` and the
    fields of SamplingParams. Where they are silent, the card speaks. `settings` bound pictures.
    """

    def __init__(self, resident: Resident, settings: Settings | None = None) -> None:
        self.resident = resident
        self._settings = settings or Settings()
        self._conversations = Conversations(resident)

    @classmethod
    def load(cls, model: str, settings: Settings | None = None) -> "LLM":
        """A tag, a path or an address, fetched and compiled if need be; without `settings` under
        those of flm.toml and the environment, as on the command line.
        """
        from flm.hub.prepare import prepare_model

        settings = load_settings() if settings is None else settings
        return cls(load(*prepare_model(model, settings), settings), settings)

    def chat(
        self, messages: Messages, *, tools: Tools = (), thinking: bool | None = None, **terms: Any
    ) -> Reply:
        """`tools` are OpenAI function objects, which the model is told of and may call.

        Raises PromptTooLong, BadRequest, QueueFull, DeviceFailed.
        """
        return self.stream(messages, tools=tools, thinking=thinking, **terms).reply

    def stream(
        self, messages: Messages, *, tools: Tools = (), thinking: bool | None = None, **terms: Any
    ) -> Stream:
        reader = self.resident.reader(self._settings)
        said = tuple(_messages(messages, reader))
        conversation = Conversation(said, tools=tuple(tools), thinking=thinking)
        asked = self._terms(**terms)
        answers = self._conversations.chat(conversation, asked, request_id=_new_id())
        return Stream(self._conversations, answers[0])

    def complete(self, prompt: str | Sequence[int], **terms: Any) -> Reply:
        """What comes after a text or token ids, without a chat template."""
        return self.stream_completion(prompt, **terms).reply

    def stream_completion(self, prompt: str | Sequence[int], **terms: Any) -> Stream:
        answers = self._conversations.text(prompt, self._terms(**terms), request_id=_new_id())
        return Stream(self._conversations, answers[0])

    def close(self) -> None:
        self.resident.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _terms(
        self,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        schema: Mapping[str, Any] | None = None,
        must_call: Sequence[str] | None = None,
        calls_max: int | None = None,
        **sampling: Any,
    ) -> Terms:
        return Terms(
            replace(self.resident.card.sampling, **sampling),
            max_tokens=max_tokens,
            stop=tuple(stop),
            ignore_eos=ignore_eos,
            format=None if schema is None else Format(schema, "schema"),
            must_call=None if must_call is None else tuple(must_call),
            calls_max=calls_max,
        )


def _messages(messages: Messages, reader: Reader) -> Iterator[Message]:
    given = [Message("user", messages)] if isinstance(messages, str) else messages
    for index, message in enumerate(given):
        if isinstance(message, Message):
            yield message
        elif isinstance(message.get("content"), str | None):
            yield Message(**message)
        else:
            text, pictures = _parts(message["content"], f"messages[{index}].content", reader)
            yield Message(**{**message, "content": text, "pictures": pictures})


def _parts(
    parts: Sequence[Any], place: str, reader: Reader
) -> tuple[str, tuple[tuple[int, Picture], ...]]:
    """Texts joined by a newline, and pictures with the characters before them, as the server has
    them. Raises BadRequest, UnsupportedFeature.
    """
    text, pictures, after_text = "", [], False
    for index, part in enumerate(parts):
        at, shown = f"{place}[{index}]", _shown_by(part)
        if shown is not None:
            pictures.append((len(text), reader.shown(shown, at)))
        else:
            said = part.get("text") if isinstance(part, Mapping) else part
            if not isinstance(said, str):
                raise BadRequest(
                    f"{at} is neither a text nor a picture", fix="give a str or a Path"
                )
            text += ("\n" if after_text else "") + said
        after_text = shown is None
    return text, tuple(pictures)


def _shown_by(part: Any) -> Any:
    """The picture that a part is, or has as OpenAI and transformers write it; None in a text."""
    if not isinstance(part, Mapping):
        return None if isinstance(part, str) else part
    shown = part.get("image_url", part.get("image"))
    return shown.get("url") if isinstance(shown, Mapping) else shown


def _new_id() -> str:
    return f"llm-{secrets.token_hex(8)}"
