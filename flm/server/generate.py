"""One HTTP request's answers while they run: events cross from the engine's thread to the loop.

Invariants:
  * What was submitted has ended or is cancelled once `running` is left, whichever way.
  * At most EVENTS_BEHIND_MAX events wait for a client that does not read; past it, all is
    cancelled and `read` raises ClientStalled.
  * Choices that find the queue full wait here while another of ours runs.
  * The engine's thread wakes the loop at most once for all that the loop has not seen.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from starlette.types import Receive

from flm.core.chat import Delta, joined
from flm.core.event import Admitted, Event, Finished, Generated
from flm.engine.answer import Answer
from flm.engine.conversation import Conversations
from flm.errors import QueueFull
from flm.server.leaving import ClientLeft, ClientStalled, left

EVENTS_BEHIND_MAX = 16_384


@dataclass(eq=False, slots=True)
class Choice:
    """One of the answers asked for, and what it said that was not yet passed on."""

    index: int
    answer: Answer
    followers: list["Choice"] = field(default_factory=list)  # start once this has read the prompt
    opened: bool = False  # whether it has taken a lane
    _said: list[Delta] = field(default_factory=list)
    _tokens: list[Generated] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        """Raises the error of a request that failed."""
        self._said += self.answer.read(event)
        if isinstance(event, Generated) and event.logprob is not None:
            self._tokens.append(event)

    def take(self) -> list[Delta]:
        taken, self._said = joined(self._said), []
        return taken

    def take_tokens(self) -> list[Generated]:
        """Those with log probabilities."""
        taken, self._tokens = self._tokens, []
        return taken


class Generation:
    """Every method is for the event loop, but `read_ahead` and `_listen`."""

    def __init__(
        self,
        conversations: Conversations,
        prompts: Sequence[Sequence[Answer]],
        *,
        admitted: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        """`prompts`: for each, its answers; only the first of them must read it. `admitted` is told
        of each that has taken a lane.
        """
        self.choices: list[Choice] = []
        for answers in prompts:
            leader, *followers = (
                Choice(len(self.choices) + offset, answer) for offset, answer in enumerate(answers)
            )
            leader.followers = followers
            self.choices += [leader, *followers]
        self.prompts = prompts
        self._conversations = conversations
        self._admitted = admitted
        self._by_id = {choice.answer.request.id: choice for choice in self.choices}
        self._running: set[Choice] = set()
        self._patient: deque[Choice] = deque()  # may start as soon as there is room
        self._waiting: deque[Event] = deque()
        self._signalled = False
        self._over: Exception | None = None  # why nothing more is read
        self._cancelled = False
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def finished(self) -> bool:
        return all(choice.answer.finished for choice in self.choices)

    def cancel(self) -> None:
        """All its answers end as they are; those that have yet to begin do so to end at once."""
        self._cancelled = True
        for choice in self._running:
            if not choice.answer.finished:
                self._conversations.cancel(choice.answer)

    @asynccontextmanager
    async def running(self, receive: Receive) -> AsyncIterator[None]:
        """Submits, and watches for the client to leave. Raises QueueFull."""
        watch = self._loop.create_task(self._watch(receive))
        try:
            first, *others = (self._by_id[answers[0].request.id] for answers in self.prompts)
            self._submit(first)
            self._patient += others
            self._submit_patient()
            yield
        finally:
            watch.cancel()
            self._cancel()

    def read_ahead(self) -> None:
        """Once its client has all of it; takes a while, on no event loop. Of several answers to
        choose from, nobody knows which will be gone on from.
        """
        if len(self.choices) == 1:
            self._conversations.read_ahead(self.choices[0].answer)

    async def read(self, wait_s: float | None = None) -> list[Choice]:
        """The choices that something happened to; [] if nothing does for `wait_s`.

        Raises ClientLeft, the error of a request that failed, QueueFull for a follower.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._waiting and self._over is None:
                    self._ready.clear()
                    await self._ready.wait()
        if self._over:
            raise self._over
        if len(self._waiting) > EVENTS_BEHIND_MAX:
            raise ClientStalled
        touched: dict[int, Choice] = {}
        while self._waiting:
            event = self._waiting.popleft()
            choice = self._by_id[event.request_id]
            touched[choice.index] = choice
            choice.hear(event)
            if isinstance(event, Admitted):
                self._admitted(choice.answer)
            if choice.answer.full and not choice.answer.finished:
                self._conversations.cancel(choice.answer)
            if isinstance(event, Finished):
                self._conversations.ended(choice.answer)
            if isinstance(event, Generated | Finished) and choice.followers:
                self._patient += choice.followers
                choice.followers = []
                self._submit_patient()
            elif isinstance(event, Finished):
                self._submit_patient()
        return list(touched.values())

    def end(self, why: Exception) -> None:
        """Nothing more is generated; `read` raises `why`."""
        self._over = self._over or why
        self._cancel()
        self._ready.set()

    def _submit_patient(self) -> None:
        """As many as the queue takes. More have room when one of us ends, so n is never refused
        for being larger than the queue; raises QueueFull when others have taken it all.
        """
        while self._patient:
            try:
                self._submit(self._patient[0])
            except QueueFull:
                if any(not choice.answer.finished for choice in self._running):
                    return
                raise
            self._patient.popleft()

    def _submit(self, choice: Choice) -> None:
        self._conversations.submit(choice.answer, self._listen)
        self._running.add(choice)
        if self._cancelled:
            self._conversations.cancel(choice.answer)

    def _cancel(self) -> None:
        self.cancel()
        self._running.clear()

    def _listen(self, event: Event) -> None:
        """On the engine's thread."""
        if len(self._waiting) > EVENTS_BEHIND_MAX:
            return
        self._waiting.append(event)
        if not self._signalled:
            self._signalled = True
            with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._signalled = False  # before the look: what comes later signals again
        if len(self._waiting) > EVENTS_BEHIND_MAX:
            self._cancel()
        self._ready.set()

    async def _watch(self, receive: Receive) -> None:
        await left(receive)
        self.end(ClientLeft())
