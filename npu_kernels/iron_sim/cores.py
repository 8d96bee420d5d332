"""A core: one worker's body, suspended wherever it waits.

Bodies are ordinary Python that calls acquire and release, so each runs in a thread of its own; but
exactly one thread runs at a time, handed over by name, so that every run is the same run.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any

from npu_kernels.iron_sim.faults import DesignFault, not_simulated
from npu_kernels.iron_sim.pools import Pool
from npu_kernels.iron_sim.record import Barrier
from npu_kernels.iron_sim.value import Memory


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a core stands still, and what would let it go on."""

    ready: Callable[[], bool]
    what: str
    pool: Pool | None = None
    readers: bool = False  # it waits for readers of the pool, else for writers


class _Stopped(BaseException):
    """Unwinds a body whose array is closed."""


class Core:
    def __init__(self, name: str, work: Callable[[], bool]) -> None:
        self.name = name
        self.wait: Wait | None = None
        self.ended = False
        self.waited = 0  # how often it had to look at anything that others change
        self._work = work  # moves what can move without a core
        self._turn, self._back = allocate_lock(), allocate_lock()
        self._turn.acquire()
        self._back.acquire()
        self._stopping = False
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    def start(self, program: Callable[[], None]) -> None:
        self._thread = Thread(target=self._run, args=(program,), name=self.name, daemon=True)
        self._thread.start()
        self.resume()

    def _run(self, program: Callable[[], None]) -> None:
        self._turn.acquire()
        try:
            program()
        except _Stopped:
            pass
        except BaseException as error:  # handed to whoever resumed
            self._error = error
        self.ended = True
        self._back.release()

    def resume(self) -> None:
        """Runs the body until it waits again or ends; raises what it raised."""
        self._turn.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            error.add_note(f"in the body of worker {self.name}")
            raise error

    @property
    def runnable(self) -> bool:
        return not self.ended and self.wait is not None and self.wait.ready()

    def until(self, wait: Wait) -> None:
        """Called by the body: returns once the wait is over."""
        self.waited += 1
        while True:
            if self._stopping:
                raise _Stopped
            if wait.ready():
                self.wait = None
                return
            if self._work():
                continue
            self.wait = wait
            self._back.release()
            self._turn.acquire()

    def stop(self) -> None:
        self._stopping = True
        if self._thread is not None:
            if not self.ended:
                self._turn.release()
            self._thread.join()


class _Held:
    """One fifo's end in a body's hands. Objects are held oldest first, and released so."""

    def __init__(self, core: Core, pool: Pool, number: int, depth: int, label: str) -> None:
        self._core, self._pool, self._number, self._depth = core, pool, number, depth
        self.name = label
        self.held: list[Memory] = []

    shape = property(lambda self: self._pool.type.shape)
    dtype = property(lambda self: self._pool.type.dtype)
    depth = property(lambda self: self._depth)

    def _available(self) -> int:
        raise NotImplementedError

    def _wait(self, count: int) -> Wait:
        raise NotImplementedError

    def _passed(self) -> list[int]:
        raise NotImplementedError

    def _pass(self, count: int) -> None:
        raise NotImplementedError

    def acquire(self, num_elem: int) -> Any:
        """The oldest num_elem objects: those held already, and as many more as it takes."""
        if not isinstance(num_elem, int) or num_elem < 1:
            raise ValueError(f"{self.name}: acquire({num_elem!r})")
        if num_elem > self._depth:
            raise ValueError(f"{self.name}: acquire({num_elem}) of a fifo of depth {self._depth}")
        if num_elem > len(self.held):
            self._core.until(self._wait(num_elem))
            first = self._passed()[self._number]
            for number in range(first + len(self.held), first + num_elem):
                self.held.append(Memory(f"{self.name}[{number}]", self._pool.array(number)))
        return self.held[0] if num_elem == 1 else list(self.held[:num_elem])

    def release(self, num_elem: int) -> None:
        """Gives back the oldest num_elem objects."""
        if not isinstance(num_elem, int) or num_elem < 1:
            raise ValueError(f"{self.name}: release({num_elem!r})")
        if num_elem > len(self.held):
            what = f"release({num_elem}) while {len(self.held)} are held"
            raise DesignFault("release-unheld", self.name, what)
        for memory in self.held[:num_elem]:
            memory.gone = f"used after release({num_elem}), which gives back the oldest"
        del self.held[:num_elem]
        self._pass(num_elem)

    def __getattr__(self, name: str) -> Any:
        raise not_simulated(f"{name} of a fifo's handle in a worker's body")


class Producing(_Held):
    def _available(self) -> int:
        return self._pool.room(self._number)

    def _passed(self) -> list[int]:
        return self._pool.written

    def _pass(self, count: int) -> None:
        self._pool.give(self._number, count)

    def _wait(self, count: int) -> Wait:
        what = f"waits for room for {count} in '{self._pool.name}'"
        return Wait(lambda: self._available() >= count, what, self._pool, readers=True)


class Consuming(_Held):
    def _available(self) -> int:
        return self._pool.there(self._number)

    def _passed(self) -> list[int]:
        return self._pool.read

    def _pass(self, count: int) -> None:
        self._pool.take(self._number, count)

    def _wait(self, count: int) -> Wait:
        what = f"waits for {count} of '{self._pool.name}', {self._available()} there"
        return Wait(lambda: self._available() >= count, what, self._pool)


class BarrierLock:
    """A worker's lock of a barrier: an equal value is taken off, so a wait passes once per set."""

    def __init__(self, core: Core, barrier: Barrier) -> None:
        self._core, self.barrier = core, barrier
        self.value = barrier.initial

    def wait_for_value(self, value: int) -> None:
        what = f"waits for barrier '{self.barrier.name}' to be {value}"
        self._core.until(Wait(lambda: self.value == value, what))
        self.value -= value

    def release_with_value(self, value: int) -> None:
        self.value += value
