"""Pictures to rows, by a model's tower. Rows of pictures seen lately are kept: a picture that comes
again is not encoded again, whatever became of its prompt.

Invariant: rows kept take at most `bytes_max`; who was asked for longest ago goes first.
"""

import time
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from flm.core.picture import Placed, Sight
from flm.devices.device import EMBEDDING, Array
from flm.errors import DeviceFailed, PassCancelled
from flm.text.sight import inputs

if TYPE_CHECKING:
    import onnxruntime


class Eyes:
    """For one thread, but `cancel`, which is for any. `encoded` counts runs of the tower, that
    took `encoding_s`.
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
        self._running: onnxruntime.RunOptions | None = None
        self._lock = Lock()

    def rows(self, picture: Placed) -> Array:
        """[tokens, width] float32. Raises DeviceFailed, PassCancelled."""
        if picture.identity in self._kept:
            self._kept.move_to_end(picture.identity)
            return self._kept[picture.identity]
        rows = self._encode(picture)
        self._keep(picture.identity, rows)
        return rows

    def cancel(self) -> None:
        """What the tower is at ends soon, if it is at anything."""
        with self._lock:
            if self._running is not None:
                self._running.terminate = True

    @property
    def bytes_kept(self) -> int:
        return self._bytes

    def check(self) -> None:
        assert self._bytes == sum(rows.nbytes for rows in self._kept.values())
        assert self._bytes <= self._bytes_max

    def _encode(self, picture: Placed) -> Array:
        started = time.perf_counter()
        given = dict(inputs(picture.picture, self.sight))
        import onnxruntime

        options = onnxruntime.RunOptions()
        options.log_severity_level = 4  # a cancelled pass is not an error to print
        with self._lock:
            self._running = options
        try:
            (rows,) = self._session.run([EMBEDDING], given, options)
        except Exception as error:  # onnxruntime's own types are not public
            if options.terminate:
                raise PassCancelled("the pass was cancelled", fix="none needed") from error
            raise DeviceFailed(
                f"onnxruntime failed on a picture: {error}", fix="see docs/troubleshooting.md"
            ) from error
        finally:
            with self._lock:
                self._running = None
        self.encoded += 1
        self.encoding_s += time.perf_counter() - started
        found: Array = rows
        return found

    def _keep(self, identity: str, rows: Array) -> None:
        if rows.nbytes > self._bytes_max:
            return
        self._kept[identity] = rows
        self._bytes += rows.nbytes
        while self._bytes > self._bytes_max:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.nbytes
