"""The thread that owns the device: it drives an engine between messages from other threads.

Invariants:
  * Only this thread calls the engine, but for `validate`, `room` and `interrupt`.
  * The lock is held for moments, never during a step, so `submit` and `cancel` return at once.
  * A listener hears one last event, Finished or Failed, whatever happens.
  * Without work the thread sleeps.
"""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Condition, Thread
from typing import Any, TypeVar

from flm.core.event import Event, Failed, Finished
from flm.core.request import Priority, Request
from flm.engine.counting import Losses
from flm.engine.engine import Engine
from flm.errors import DeviceFailed, FlmError, ModelLoading
from flm.memory.parked import Parked
from flm.prefix.cache import PrefixCache
from flm.runner.eyes import Eyes

Listener = Callable[[Event], None]
T = TypeVar("T")
FLUSH_S_MAX = 8.0  # for what is kept in memory only, once all is over
PAUSE_S = 0.05  # without work, before idle work begins
QUIET_S = 1.0  # without work, before what is kept in memory only is made safe


class EngineThread:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners: dict[str, Listener] = {}
        # A request to submit, the id of one to cancel, or work to do.
        self._inbox: list[Request | str | Callable[[], None]] = []
        self._asked: set[Future[Any]] = set()
        self._closing = False
        self._pressed_at = 0.0
        self._wake = Condition()
        engine.cache.when_landed(self.wake)
        if engine.encodings:
            engine.encodings.notify = self.wake
        self._thread = Thread(target=self._live, name="engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._engine.waiting + self._submitted

    @property
    def running(self) -> int:
        return self._engine.running

    @property
    def losses(self) -> Losses:
        return self._engine.losses

    @property
    def cache(self) -> PrefixCache:
        """For its numbers, which may be read on any thread."""
        return self._engine.cache

    @property
    def standing(self) -> Counter[tuple[str, Priority]]:
        """How many requests of each class wait, run and are parked."""
        submitted = [each for each in list(self._inbox) if isinstance(each, Request)]
        return self._engine.standing + Counter(("waiting", each.priority) for each in submitted)

    @property
    def parked(self) -> Parked:
        """The memory of those that are."""
        return self._engine.parking.parked

    @property
    def eyes(self) -> Eyes | None:
        """For what they count, of a model that sees."""
        encodings = self._engine.encodings
        return encodings.eyes if encodings else None

    @property
    def idle(self) -> bool:
        return not self._listeners

    def submit(self, request: Request, listener: Listener) -> None:
        """`listener` is called on the engine's thread with each event of the request, and must not
        block; one that raises is not called again, and its request is cancelled.

        Raises what `Engine.validate` does, QueueFull, or ModelLoading once closed.
        """
        self._engine.validate(request)
        with self._wake:
            if self._closing:
                raise ModelLoading("the model is being unloaded", fix="send the request again")
            if request.priority is not Priority.IDLE and self._engine.room <= self._submitted:
                raise self._engine.queue_full()
            assert request.id not in self._listeners, f"{request.id} twice"
            self._listeners[request.id] = listener
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """It ends with Finished, soon: a pass that is for no other is cut short."""
        with self._wake:
            self._inbox.append(request_id)
            self._wake.notify()
        self._engine.interrupt(request_id)

    def ask(self, work: Callable[[Engine], T]) -> "Future[T]":
        """`work` is done between two steps, and must be quick. The future has what it gives or
        raises; ModelLoading once closed.
        """
        asked: Future[T] = Future()
        asked.add_done_callback(self._asked.discard)
        with self._wake:
            if self._closing:
                raise ModelLoading("the model is being unloaded", fix="send the request again")
            self._asked.add(asked)
            self._inbox.append(partial(_fulfil, asked, work, self._engine))
            self._wake.notify()
        return asked

    def wake(self) -> None:
        """Something landed that the engine waits for."""
        with self._wake:
            self._inbox.append(_nothing)
            self._wake.notify()

    def close(self, flush_s: float = FLUSH_S_MAX) -> None:
        """Cancel all, and return when the thread has ended and what is kept is on the disk, as far
        as `flush_s` reach.
        """
        with self._wake:  # at once: a thread without work ends when it sees that it is to
            self._closing = True
            self._inbox += self._listeners
            self._wake.notify()
        for request_id in list(self._listeners):
            self._engine.interrupt(request_id)
        self._thread.join()
        if self._engine.encodings:
            self._engine.encodings.close()
        self._engine.cache.close(flush_s)

    def hurry(self) -> None:
        """While `close` is under way on another thread: it writes no more."""
        if disk := self._engine.cache.disk:
            disk.hurry()

    @property
    def _submitted(self) -> int:
        """Requests that the engine has yet to be told of."""
        return sum(isinstance(message, Request) for message in self._inbox)

    def _live(self) -> None:
        try:
            while self._has_work():
                self._read_inbox()
                pressed = self._engine.pressed
                if pressed or self._rested:
                    for event in self._step():
                        self._tell(event)
                if pressed:
                    self._pressed_at = time.monotonic()
        except BaseException:  # not even `abandon` helped: leave no client hanging
            self._closing = True
            ended = DeviceFailed("the engine has ended, by a bug", fix="restart flm, and report it")
            for request_id in list(self._listeners):
                self._tell(Failed(request_id, ended))
            for asked in list(self._asked):
                if not asked.done():
                    asked.set_exception(ended)
            raise

    def _has_work(self) -> bool:
        """Sleep until there is some; False when there never will be again."""

        def stirs() -> bool:
            return bool(self._inbox or self._engine.pressed or self._closing)

        with self._wake:
            # Who has just had an answer may come back with the next question: no idle work yet.
            still = not self._wake.wait_for(stirs, timeout=PAUSE_S)
            if still and not self._engine.busy and not self._wake.wait_for(stirs, timeout=QUIET_S):
                self._engine.cache.spill(all_of_it=True)
                self._wake.wait_for(stirs)
            busy = self._engine.pressed if self._closing else self._engine.busy
            return bool(self._inbox or busy)

    def _submit(self, request: Request) -> None:
        """`room` may have been less than it seemed while a step ran."""
        try:
            self._engine.submit(request)
        except Exception as error:  # of ours, it ends this request alone
            if not isinstance(error, FlmError):
                self._engine.cancel(request.id)
            self._tell(Failed(request.id, error))

    @property
    def _rested(self) -> bool:
        """Nobody has waited for a while: idle work may begin, or go on."""
        return time.monotonic() - self._pressed_at >= PAUSE_S

    def _read_inbox(self) -> None:
        with self._wake:  # so that `room` and `_submitted` agree
            for message in self._inbox:
                if isinstance(message, Request):
                    self._submit(message)
                elif isinstance(message, str):
                    self._engine.cancel(message)
                else:
                    message()
            self._inbox.clear()

    def _step(self) -> list[Event]:
        try:
            return self._engine.step()
        except Exception as error:  # a bug of ours, which ends the requests it was at work for
            self._engine.abandon(error)
            return self._engine.step()

    def _tell(self, event: Event) -> None:
        listener = self._listeners.get(event.request_id)
        if isinstance(event, Finished | Failed):
            self._listeners.pop(event.request_id, None)
        if listener is None:
            return
        try:
            listener(event)
        except Exception:  # the client's side is gone
            self._listeners.pop(event.request_id, None)
            self._engine.cancel(event.request_id)


def _fulfil(asked: "Future[T]", work: Callable[[Engine], T], engine: Engine) -> None:
    if not asked.set_running_or_notify_cancel():  # who asked has left
        return
    try:
        asked.set_result(work(engine))
    except Exception as error:
        asked.set_exception(error)


def _nothing() -> None:
    """The step that follows is what was wanted."""
