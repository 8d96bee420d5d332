"""From a conversation to requests, one an answer.

The one place that knows the template and the engine. It starts no thread and waits for nothing:
the server and `LLM` bring their own way of waiting. Rendering and encoding take time in
proportion to the prompt, so the server calls `chat` and `text` off its event loop.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from flm.core.chat import Conversation
from flm.core.event import Event, FinishReason
from flm.core.grammar import Grammar
from flm.core.prompt import Boundary, BoundaryKind, Prompt
from flm.core.request import Priority, Request, SamplingParams
from flm.engine.answer import Answer
from flm.engine.residency import Resident
from flm.engine.terms import Terms, held_to
from flm.errors import BadRequest, FlmError, PromptTooLong
from flm.prefix.boundaries import text_prompt
from flm.text.constraint import Thought
from flm.text.dialects.tagged import PLAIN

OPENING_TOKENS_MAX = 8  # of a prompt's end, enough for the tag that opens a thought
TOKEN_CHARS_MAX = 32  # on the average of a whole prompt; tables drawn with spaces come near
TOKEN_CHARS_USUAL = 4
NONE = SamplingParams()
# How a reply ends that may be gone on from.
BY_ITSELF = (FinishReason.STOP, FinishReason.STOP_STRING, FinishReason.LENGTH)


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
        tokenizer, dialect = self._resident.tokenizer, self._resident.template.dialect
        self._refuse_hopeless(sum(len(message.content or "") for message in conversation.messages))
        if conversation.thinking is None and self._resident.card.thinks:
            conversation = replace(conversation, thinking=True)
        conversation, begun = _take_begun(conversation)
        prompt = self._resident.boundaries.find(
            conversation,
            now=self._now(),
            domain=domain,
            length_max=self._resident.context_length,
        )
        opens, closes = dialect.thought
        ending = tokenizer.decode(prompt.tokens[-OPENING_TOKENS_MAX:], skip_special=False)
        thinking = ending.rstrip().endswith(opens)
        if begun:
            text = f"{closes}\n\n{begun}" if thinking and closes not in begun else begun
            prompt = _extended(prompt, tokenizer.encode(dialect.answer + text))
            thinking = begun.rfind(opens) > begun.rfind(closes)
        tools = conversation.tools if terms.tool_calls else ()
        thought = Thought.OPEN if thinking else self._thought(conversation.thinking)
        grammar = held_to(terms, self._resident.grammars, dialect, thought, tools, begun)
        marks = dialect.marks + (dialect.call_marks if tools else ())
        shown = frozenset(tokenizer.special[each] for each in marks if each in tokenizer.special)
        answers = []
        for request in self._requests(prompt, terms, request_id, shown, grammar):
            reader = dialect.open(tools, thinking)
            if begun:
                reader.add(dialect.answer)
            answers.append(Answer(request, reader, conversation, begun, terms.calls_max))
        return answers

    def text(
        self, text: str | Sequence[int], terms: Terms, *, request_id: str, domain: str = ""
    ) -> list[Answer]:
        """The same for a plain completion of text or token ids."""
        tokens = self.encode(text) if isinstance(text, str) else list(text)
        if not tokens:
            raise BadRequest("The prompt is empty", fix="send at least one token", param="prompt")
        vocabulary = self._resident.tokenizer.vocabulary
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise BadRequest(
                "The prompt has a token id outside the vocabulary",
                fix=f"send ids from 0 to {vocabulary - 1}",
                param="prompt",
            )
        prompt = text_prompt(tokens, domain=domain)
        grammar = held_to(terms, self._resident.grammars, PLAIN, Thought.NONE)
        requests = self._requests(prompt, terms, request_id, grammar=grammar)
        return [Answer(each, None) for each in requests]

    def encode(self, text: str, *, first: bool = True) -> list[int]:
        """Plain text as the model was trained to read it: after its first token, if it has one and
        `first` says so. Raises PromptTooLong where that is plain to see.
        """
        self._refuse_hopeless(len(text))
        tokenizer = self._resident.tokenizer
        tokens = tokenizer.encode(text)
        if first and tokenizer.add_bos and tokenizer.bos_id not in tokens[:1]:
            assert tokenizer.bos_id is not None
            tokens.insert(0, tokenizer.bos_id)
        return tokens

    def submit(self, answer: Answer, listener: Callable[[Event], None]) -> None:
        """Raises QueueFull. The listener is called on the engine's thread and must not wait."""
        self._resident.thread.submit(answer.request, listener)

    def cancel(self, answer: Answer) -> None:
        self._resident.thread.cancel(answer.request.id)

    def ended(self, answer: Answer) -> None:
        """Before its client knows: if it called tools, their results are awaited."""
        prompt, reuse = answer.request.prompt, answer.request.reuse
        if reuse and answer.calls:
            tools = {call.name for call in answer.tool_calls}
            with suppress(FlmError):  # it is being unloaded
                self._resident.thread.ask(lambda engine: engine.cache.called(prompt, tools))

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

    def _thought(self, asked: bool | None) -> Thought:
        """Where nothing is said of it, those may think whose vocabulary has a token for it."""
        tokenizer = self._resident.tokenizer
        first, *_ = tokenizer.encode(self._resident.template.dialect.thought[0])
        may = tokenizer.piece(first).endswith(">") if asked is None else asked
        return Thought.MAY if may else Thought.NONE

    def _refuse_hopeless(self, chars: int) -> None:
        """Megabytes too much are not worth encoding to say by how many tokens."""
        if chars > TOKEN_CHARS_MAX * self._resident.context_length:
            raise PromptTooLong(
                prompt_tokens=chars // TOKEN_CHARS_USUAL,
                context_length=self._resident.context_length,
            )

    def _requests(
        self,
        prompt: Prompt,
        terms: Terms,
        request_id: str,
        shown: frozenset[int] = frozenset(),
        grammar: Grammar | None = None,
    ) -> Iterator[Request]:
        room = self._resident.context_length - len(prompt.tokens)
        if room < 1:
            raise PromptTooLong(
                prompt_tokens=len(prompt.tokens), context_length=self._resident.context_length
            )
        for index in range(terms.n):
            seed = terms.sampling.seed
            yield Request(
                id=f"{request_id}-{index}" if index else request_id,
                prompt=prompt,
                sampling=replace(terms.sampling, seed=None if seed is None else seed + index),
                max_tokens=min(room, terms.max_tokens or room),
                stop=terms.stop,
                ignore_eos=terms.ignore_eos,
                priority=terms.priority,
                owner=terms.owner,
                reuse=self._resident.reuse,
                shown=shown,
                grammar=grammar,
            )


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
    return Prompt(whole, (*inner, end), prompt.domain, prompt.pictures)
