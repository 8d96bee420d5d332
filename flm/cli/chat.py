"""A conversation with one loaded model, a message at a time.

Invariants:
  * `messages` holds what was said so far: the system message apart, user and assistant in turn.
  * A reply that was stopped is kept as far as it went; one that failed leaves no trace.
  * Pictures are as the model sees them; another model gets those that come after it.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from flm.core.chat import Conversation, Delta, DeltaKind, Message
from flm.core.event import Usage
from flm.core.picture import Picture
from flm.core.request import SamplingParams
from flm.engine.conversation import Conversations
from flm.engine.terms import Terms
from flm.llm import Stream

GENERATED_MAX = 4096  # tokens of a reply unless /set gen-lim says otherwise, as in FastFlowLM


@dataclass(slots=True)
class Chat:
    """`max_tokens` None: as long as the context allows. `usage` is the last reply's."""

    conversations: Conversations
    sampling: SamplingParams
    system: str = ""
    max_tokens: int | None = GENERATED_MAX
    thinking: bool | None = None
    reasoning_effort: str | None = None
    messages: list[Message] = field(default_factory=list)
    usage: Usage | None = None
    _asked: int = 0

    def ask(self, text: str, pictures: Sequence[Picture] = ()) -> Generator[Delta, None, None]:
        """The reply as it is written; pictures stand before the text. Closing the generator stops
        the reply.

        Raises PromptTooLong, BadRequest, DeviceFailed.
        """
        shown = tuple((0, picture) for picture in pictures)
        said = [*self.messages, Message("user", text, pictures=shown)]
        self._asked += 1
        answer = self.conversations.chat(
            self._conversation(said),
            Terms(self.sampling, self.max_tokens),
            request_id=f"chat-{self._asked}",
        )[0]
        stream = Stream(self.conversations, answer)
        reply = ""
        try:
            for delta in stream:
                reply += delta.text if delta.kind is DeltaKind.CONTENT else ""
                yield delta
        except (GeneratorExit, KeyboardInterrupt):
            stream.close()
            for _ in stream:  # to its end: the next message follows what was said
                pass
            raise
        finally:
            if answer.finished:
                self.usage = answer.usage
                self.messages = [*said, Message("assistant", reply)]

    def clear(self) -> None:
        self.messages, self.usage = [], None

    def forget_pictures(self) -> int:
        """How many they were."""
        count = sum(len(message.pictures) for message in self.messages)
        self.messages = [replace(message, pictures=()) for message in self.messages]
        return count

    def set_sampling(self, **values: float | int | None) -> None:
        self.sampling = replace(self.sampling, **values)  # type: ignore[arg-type]

    def _conversation(self, messages: list[Message]) -> Conversation:
        system = [Message("system", self.system)] if self.system else []
        return Conversation(
            messages=(*system, *messages),
            thinking=self.thinking,
            reasoning_effort=self.reasoning_effort,
        )
