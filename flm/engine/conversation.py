"""From a conversation to requests, and from events to the deltas a client sees.

The one place that knows the template and the engine. It starts no thread and waits for nothing:
the server and `LLM` bring their own way of waiting. Rendering and encoding take time in
proportion to the prompt, so the server calls `chat` and `text` off its event loop.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from flm.core.chat import Conversation, Delta, DeltaKind, Message
from flm.core.event import Admitted, Event, Failed, Finished, FinishReason, Generated, Usage
from flm.core.finding import Finding
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Priority, Request, SamplingParams
from flm.engine.residency import Resident
from flm.errors import BadRequest, FlmError, PromptTooLong
from flm.prefix.boundaries import text_prompt
from flm.text.splitter import Splitter

OPENS, CLOSES = "<think>", "</think>"
OPENING_TOKENS_MAX = 8  # of a prompt's end, enough for the tag that opens a thought
TOKEN_CHARS_MAX = 32  # on the average of a whole prompt; tables drawn with spaces come near
TOKEN_CHARS_USUAL = 4
NONE = SamplingParams()
BY_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)  # how a reply ends that may be gone on from


@dataclass(frozen=True, slots=True)
class Terms:
    """How answers are chosen and ended. `max_tokens` None: as many as the context length leaves."""

    sampling: SamplingParams
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    priority: Priority = Priority.INTERACTIVE


class Answer:
    """What one request says: feed it the request's events in order.

    Invariants:
      * `reason` and `usage` are set together, by the last event, after which nothing is read.
      * The deltas of all reads, joined, are the reply's text with the thought's tags taken out.
    """

    def __init__(
        self,
        request: Request,
        splitter: Splitter | None,
        conversation: Conversation | None = None,
        begun: str = "",
    ) -> None:
        """`conversation`: the messages that were rendered, None for a plain completion; `begun`:
        what the client wrote of the reply.
        """
        self.request = request
        self.conversation = conversation
        self.finding: Finding | None = None  # what was known of the prompt, if much is read
        self.reason: FinishReason | None = None
        self.usage: Usage | None = None
        self.reasoning_tokens = 0
        self._splitter = splitter
        self._begun = begun
        self._said: list[Delta] = []

    @property
    def finished(self) -> bool:
        return self.reason is not None

    @property
    def continued(self) -> Conversation | None:
        """The conversation with this reply, as its client sends it back: most keep the thoughts to
        themselves, so they are in it if those of earlier replies were. None for a plain completion.
        """
        if self.conversation is None:
            return None
        earlier = self.conversation.messages
        thought = any(message.reasoning for message in earlier)
        reply = Message(
            "assistant",
            self._begun + self._joined(DeltaKind.CONTENT),
            reasoning=(self._joined(DeltaKind.REASONING) or None) if thought else None,
        )
        return replace(self.conversation, messages=(*earlier, reply))

    def read(self, event: Event) -> list[Delta]:
        """What the event adds to the reply. Raises a Failed event's error."""
        assert not self.finished, f"{self.request.id} goes on after its end"
        deltas = self._read(event)
        self._said += deltas
        return deltas

    def _read(self, event: Event) -> list[Delta]:
        match event:
            case Admitted():
                self.finding = event.finding
                return []
            case Generated():
                return self._split(event.text, tokens=1)
            case Finished():
                self.reason, self.usage = event.reason, event.usage
                deltas = self._split(event.text, tokens=0)
                return deltas + (self._splitter.finish() if self._splitter else [])
            case Failed():
                raise event.error

    def _split(self, text: str, *, tokens: int) -> list[Delta]:
        if self._splitter is None:
            return [Delta(DeltaKind.CONTENT, text)] if text else []
        thought = self._splitter.thinking
        deltas = self._splitter.add(text)
        # The tokens that open and close a thought are part of what it costs.
        self.reasoning_tokens += tokens * (thought or self._splitter.thinking)
        return deltas

    def _joined(self, kind: DeltaKind) -> str:
        return "".join(delta.text for delta in self._said if delta.kind is kind)


class Conversations:
    """The way in to one loaded model."""

    def __init__(self, resident: Resident, *, now: Callable[[], datetime] = datetime.now) -> None:
        self._resident = resident
        self._now = now

    def chat(
        self, conversation: Conversation, terms: Terms, *, request_id: str, domain: str = ""
    ) -> list[Answer]:
        """One answer for each of `terms.n`, not yet running. Raises PromptTooLong, BadRequest.

        A last message of the assistant is what the answer goes on from; an empty one is dropped.
        Only prompts of the same `domain` share what is kept of them.
        """
        tokenizer = self._resident.tokenizer
        self._refuse_hopeless(sum(len(message.content or "") for message in conversation.messages))
        conversation, begun = _take_begun(conversation)
        prompt = self._resident.boundaries.find(
            conversation,
            now=self._now(),
            domain=domain,
            length_max=self._resident.context_length,
        )
        ending = tokenizer.decode(prompt.tokens[-OPENING_TOKENS_MAX:], skip_special=False)
        thinking = ending.rstrip().endswith(OPENS)
        if begun:
            text = f"{CLOSES}\n\n{begun}" if thinking and CLOSES not in begun else begun
            prompt = _extended(prompt, tokenizer.encode(text))
            thinking = begun.rfind(OPENS) > begun.rfind(CLOSES)
        return self._answers(prompt, terms, request_id, thinking, conversation, begun)

    def text(
        self, text: str | Sequence[int], terms: Terms, *, request_id: str, domain: str = ""
    ) -> list[Answer]:
        """The same for a plain completion of text or token ids."""
        tokens = self._encode(text) if isinstance(text, str) else list(text)
        if not tokens:
            raise BadRequest("The prompt is empty", fix="send at least one token", param="prompt")
        vocabulary = self._resident.tokenizer.vocabulary
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise BadRequest(
                "The prompt has a token id outside the vocabulary",
                fix=f"send ids from 0 to {vocabulary - 1}",
                param="prompt",
            )
        return self._answers(text_prompt(tokens, domain=domain), terms, request_id)

    def submit(self, answer: Answer, listener: Callable[[Event], None]) -> None:
        """Raises QueueFull. The listener is called on the engine's thread and must not wait."""
        self._resident.thread.submit(answer.request, listener)

    def cancel(self, answer: Answer) -> None:
        self._resident.thread.cancel(answer.request.id)

    def read_ahead(self, answer: Answer) -> None:
        """Once it has ended: have what the next turn will begin with read while nothing else waits,
        for the rows that decoding a reply gives are not those that reading it does.

        It renders and encodes: not for an event loop, nor for the engine's thread.
        """
        resident, request = self._resident, answer.request
        chat = answer.continued if answer.reason in BY_ITSELF else None
        if chat is None or not (resident.read_ahead and request.reuse):
            return
        prompt = resident.boundaries.ahead(
            chat,
            now=self._now(),
            domain=request.prompt.domain,
            length_max=resident.context_length - 1,
        )
        if prompt:
            request = Request(f"{request.id}-ahead", prompt, NONE, 0, priority=Priority.IDLE)
            with suppress(FlmError):  # it is being unloaded
                resident.thread.submit(request, _nobody_listens)

    def _encode(self, text: str) -> list[int]:
        """Plain text as the model was trained to read it: after its first token, if it has one."""
        self._refuse_hopeless(len(text))
        tokenizer = self._resident.tokenizer
        tokens = tokenizer.encode(text)
        if tokenizer.add_bos and tokenizer.bos_id not in tokens[:1]:
            assert tokenizer.bos_id is not None
            tokens.insert(0, tokenizer.bos_id)
        return tokens

    def _refuse_hopeless(self, chars: int) -> None:
        """Megabytes too much are not worth encoding to say by how many tokens."""
        if chars > TOKEN_CHARS_MAX * self._resident.context_length:
            raise PromptTooLong(
                prompt_tokens=chars // TOKEN_CHARS_USUAL,
                context_length=self._resident.context_length,
            )

    def _answers(
        self,
        prompt: Prompt,
        terms: Terms,
        request_id: str,
        thinking: bool | None = None,
        conversation: Conversation | None = None,
        begun: str = "",
    ) -> list[Answer]:
        room = self._resident.context_length - len(prompt.tokens)
        if room < 1:
            raise PromptTooLong(
                prompt_tokens=len(prompt.tokens), context_length=self._resident.context_length
            )
        answers = []
        for index in range(terms.n):
            seed = terms.sampling.seed
            request = Request(
                id=f"{request_id}-{index}" if index else request_id,
                prompt=prompt,
                sampling=replace(terms.sampling, seed=None if seed is None else seed + index),
                max_tokens=min(room, terms.max_tokens or room),
                stop=terms.stop,
                ignore_eos=terms.ignore_eos,
                priority=terms.priority,
                reuse=self._resident.reuse,
            )
            splitter = None if thinking is None else Splitter(thinking=thinking)
            answers.append(Answer(request, splitter, conversation, begun))
        return answers


def _nobody_listens(event: Event) -> None:
    """What was read shows when the next turn comes."""


def _take_begun(conversation: Conversation) -> tuple[Conversation, str]:
    """The conversation without assistant messages at its end, and the text begun there."""
    messages = list(conversation.messages)
    begun = ""
    while messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        begun = messages.pop().content or ""
        if begun.strip():
            break
        begun = ""
    return replace(conversation, messages=tuple(messages)), begun


def _extended(prompt: Prompt, tokens: Sequence[int]) -> Prompt:
    """The prompt with more at its end: what was its end is now passed through."""
    whole = (*prompt.tokens, *tokens)
    inner = tuple(b for b in prompt.boundaries if b.kind is not BoundaryKind.END)
    end = Boundary(len(whole), BoundaryKind.END)
    return Prompt(whole, (*inner, end), prompt.domain)
