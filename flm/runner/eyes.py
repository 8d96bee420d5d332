"""Pictures to rows, by a model's tower. Rows of pictures seen lately are kept: a picture that comes
again is not encoded again, whatever became of its prompt.

Invariant: rows kept take at most `bytes_max`, or are of one picture; who was asked for longest ago
goes first.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING

from flm.core.picture import Placed, Sight
from flm.devices.cpu import Run
from flm.devices.device import EMBEDDING, Array
from flm.text.sight import inputs

if TYPE_CHECKING:
    import onnxruntime

FLOAT_BYTES = 4


def run_of_tower() -> Run:
    """A picture takes far more than what is kept of it, and may be the only one for hours."""
    return Run(gives_back=True)


class Eyes:
    """`rows` is for the thread that runs passes, the rest for any. `encoded` counts runs of the
    tower, that took `encoding_s`.
    """

    def __init__(
        self,
        session: "onnxruntime.InferenceSession",
        sight: Sight,
        *,
        width: int,
        bytes_max: int,
    ) -> None:
        self.width = width
        self.encoded, self.encoding_s = 0, 0.0
        self._session = session
        self.sight = sight
        self._bytes_max = bytes_max
        self._kept: OrderedDict[str, Array] = OrderedDict()  # by identity, the youngest last
        self._bytes = 0
        self._running: Run | None = None  # that of a pass
        self._lock = Lock()

    def rows(self, picture: Placed) -> Array:
        """[tokens, width] float32. Raises DeviceFailed, PassCancelled."""
        with self._lock:
            if picture.identity in self._kept:
                self._kept.move_to_end(picture.identity)
                return self._kept[picture.identity]
            self._running = run = run_of_tower()
        try:
            return self.encode(picture, run)
        finally:
            with self._lock:
                self._running = None

    def cancel(self) -> None:
        """What the tower is at for a pass ends soon, if it is at anything."""
        with self._lock:
            if self._running is not None:
                self._running.cancel()

    def missing(self, pictures: Iterable[Placed]) -> list[Placed]:
        """Of different pictures those that are not kept, as many as could be at once."""
        found: dict[str, Placed] = {}
        free = self._bytes_max
        for picture in pictures:
            with self._lock:
                known = picture.identity in self._kept or picture.identity in found
            size = (picture.end - picture.start) * self.width * FLOAT_BYTES
            if not known and size <= free:
                found[picture.identity] = picture
                free -= size
        return list(found.values())

    def encode(self, picture: Placed, run: Run) -> Array:
        """What `rows` gives, and is kept for it. Raises DeviceFailed, PassCancelled."""
        started = time.perf_counter()
        given = dict(inputs(picture.picture, self.sight))
        with run.under_way(" on a picture"):
            (rows,) = self._session.run([EMBEDDING], given, run.options)
        with self._lock:
            self.encoded += 1
            self.encoding_s += time.perf_counter() - started
            self._keep(picture.identity, rows)
        found: Array = rows
        return found

    @property
    def bytes_kept(self) -> int:
        return self._bytes

    def check(self) -> None:
        with self._lock:
            assert self._bytes == sum(rows.nbytes for rows in self._kept.values())
            assert self._bytes <= self._bytes_max or len(self._kept) == 1

    def _keep(self, identity: str, rows: Array) -> None:
        """One that is larger than all may be stays for its own passes."""
        if identity in self._kept:  # two threads were at it
            self._bytes -= self._kept.pop(identity).nbytes
        self._kept[identity] = rows
        self._bytes += rows.nbytes
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.nbytes
