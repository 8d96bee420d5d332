"""Pictures encoded before their prompts have a lane, on a thread of its own: others go on
meanwhile.

What comes of it the eyes keep, as far as their bytes go. A pass that finds nothing there, because
it failed or had to make way for others, has the tower run then and there, and is told of failures.

Invariants, which `check` asserts:
  * A picture is on its way once, whoever waits for it, and no longer than somebody does.
  * A person's goes first, but past no other more than `PASSED_MAX` times: nobody waits forever.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Lock

from flm.core.picture import Placed
from flm.runner.eyes import Eyes, run_of_tower

PASSED_MAX = 8


class Encoding:
    """One picture on its way, for `users` requests; `urgent` if a person waits for one of them."""

    def __init__(self, picture: Placed) -> None:
        self.picture = picture
        self.users, self.urgent = 0, False
        self.passed = 0  # by how many that came later
        self.begun, self.done = False, False
        self.run = run_of_tower()


class Encodings:
    """Every method is for any thread. `notify` is called on the tower's, when something is done."""

    def __init__(self, eyes: Eyes, work: Executor | None = None) -> None:
        self.eyes = eyes
        self.notify: Callable[[], None] = lambda: None
        self._work = work or ThreadPoolExecutor(1, thread_name_prefix="tower")
        self._wanted: dict[str, Encoding] = {}  # by the picture's identity, not done yet
        self._lock = Lock()

    def begin(self, pictures: Iterable[Placed], *, urgent: bool) -> "Needed | None":
        """None: nothing is to be encoded, or nothing of it could be kept."""
        needed = []
        for picture in self.eyes.missing(pictures):
            with self._lock:
                encoding = self._wanted.get(picture.identity)
                if encoding is None:
                    encoding = self._wanted[picture.identity] = Encoding(picture)
                    self._work.submit(self._next)
                encoding.users += 1
                encoding.urgent |= urgent
                needed.append(encoding)
        return Needed(self, needed) if needed else None

    def leave(self, encoding: Encoding) -> None:
        """One of its users does not need it any more."""
        with self._lock:
            encoding.users -= 1
            if not encoding.users and not encoding.done:
                del self._wanted[encoding.picture.identity]
                encoding.run.cancel()

    def close(self) -> None:
        """The tower's thread has ended when this returns."""
        with self._lock:
            for encoding in self._wanted.values():
                encoding.run.cancel()
        self._work.shutdown(wait=True, cancel_futures=True)

    def check(self) -> None:
        with self._lock:
            for encoding in self._wanted.values():
                assert encoding.users > 0, "a picture that nobody waits for"
                assert not encoding.done
                assert encoding.passed <= PASSED_MAX
        self.eyes.check()

    def _next(self) -> None:
        """One job a picture; that of one that all have left finds less to do."""
        with self._lock:
            waiting = [each for each in self._wanted.values() if not each.begun]
            if not waiting:
                return
            aged = [each for each in waiting if each.passed == PASSED_MAX]
            encoding = max(aged or waiting, key=lambda each: each.urgent)
            for earlier in waiting[: waiting.index(encoding)]:
                earlier.passed = min(earlier.passed + 1, PASSED_MAX)
            encoding.begun = True
        try:
            self.eyes.encode(encoding.picture, encoding.run)
        except Exception:  # whatever it is, the pass that needs it finds it again, and tells
            pass
        finally:
            with self._lock:
                encoding.done = True
                if self._wanted.get(encoding.picture.identity) is encoding:
                    del self._wanted[encoding.picture.identity]
            self.notify()


class Needed:
    """The pictures of a request that are on their way."""

    def __init__(self, encodings: Encodings, needed: list[Encoding]) -> None:
        self._encodings = encodings
        self._needed = needed

    @property
    def done(self) -> bool:
        return all(encoding.done for encoding in self._needed)

    def close(self) -> None:
        for encoding in self._needed:
            self._encodings.leave(encoding)
        self._needed = []
