"""The disk tier: a store with a thread that reads and one that writes, so that the engine waits
for neither; and what reading from it costs, learned as it goes.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event, Lock, Timer

from flm.prefix.disk.store import DiskStore
from flm.prefix.disk.stored import BrokenEntry, Loaded, Stored, Unwritten

WRITE_BYTES_PER_S_MAX = 200 * 2**20
# Before the first read: what a SATA disk gives.
READ_BYTES_PER_S = 500e6
READ_FIXED_S = 0.01
_TELLING_BYTES = 4 * 2**20  # a smaller read tells what a read costs at all
_WEIGHT = 0.25  # of the newest


class _Stopped(Exception):
    """The tier closes: a write under way is given up."""


@dataclass(frozen=True, slots=True)
class Counters:
    reads: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    broken: int = 0  # reads that failed, and will not again
    writes: int = 0
    write_bytes: int = 0
    write_s: float = 0.0


class DiskTier:
    """`notify` is called, on any thread, when something has landed: its future is done by then.

    All methods return at once, `close` excepted. `sleep` is what a write waits with.
    """

    def __init__(
        self,
        store: DiskStore,
        *,
        notify: Callable[[], None] = lambda: None,
        write_bytes_per_s_max: float | None = WRITE_BYTES_PER_S_MAX,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.store = store
        self.read_bytes_per_s = READ_BYTES_PER_S
        self.read_fixed_s = READ_FIXED_S
        self.notify = notify
        self._rate = write_bytes_per_s_max
        self._clock = clock
        self._finishing, self._stopping = Event(), Event()
        self._sleep = sleep or self._finishing.wait
        self._free_at = clock()  # when what was written so far is within the rate
        self._reader = ThreadPoolExecutor(1, "flm-disk-read")
        self._writer = ThreadPoolExecutor(1, "flm-disk-write")
        self._lock = Lock()
        self._counters = Counters()
        self._pending_bytes = 0
        self._fetching_bytes = 0

    @property
    def counters(self) -> Counters:
        return self._counters

    @property
    def pending_bytes(self) -> int:
        """Of snapshots that wait to be written."""
        return self._pending_bytes

    def restore_pays(
        self, tokens_saved: int, stored: Stored, start: int, tokens_per_s: float
    ) -> bool:
        """Whether loading `stored` from `start` on beats reading `tokens_saved` tokens anew."""
        size = self._fetching_bytes + stored.bytes(start)  # behind those that wait
        seconds = size / self.read_bytes_per_s + self.read_fixed_s
        return tokens_saved > seconds * tokens_per_s

    def fetch(self, stored: Stored, start: int) -> Future[Loaded]:
        """As `DiskStore.read`; it stays on the disk until then. Fails with BrokenEntry."""
        pinned, size = self.store.pin(stored), stored.bytes(start)
        with self._lock:
            self._fetching_bytes += size
        future = self._reader.submit(self._read, stored, start)
        future.add_done_callback(lambda done: self._landed(stored if pinned else None, size))
        return future

    def put(self, item: Unwritten) -> Future[int]:
        """As `DiskStore.write`."""
        size = _bytes(item)
        with self._lock:
            self._pending_bytes += size
        future = self._writer.submit(self._write, item)
        future.add_done_callback(lambda done: self._written(size))
        return future

    def remove(self, domain: str, tokens: bytes) -> None:
        """The snapshot exactly there, soon."""
        self._writer.submit(self.store.remove, domain, tokens)

    def close(self, *, finish: bool = True, within_s: float | None = None) -> None:
        """Write what waits, at full speed and for so long at most, or give it up; then close the
        store."""
        self._finishing.set()
        late = Timer(within_s or 0.0, self._stopping.set)
        late.daemon = True
        if finish and within_s is not None:
            late.start()
        if not finish:
            self._stopping.set()
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown(cancel_futures=not finish)
        late.cancel()
        self.store.close()

    def hurry(self) -> None:
        """What is not written yet stays away; any thread."""
        self._stopping.set()

    def _read(self, stored: Stored, start: int) -> Loaded:
        began = self._clock()
        try:
            loaded = self.store.read(stored, start)
        except BrokenEntry as error:
            if not error.gone:
                self._count(broken=1)
            raise
        seconds, size = max(self._clock() - began, 1e-6), stored.bytes(start)
        self._count(reads=1, read_bytes=size, read_s=seconds)
        self._learn(size, seconds)
        return loaded

    def _learn(self, size: int, seconds: float) -> None:
        if size >= _TELLING_BYTES:
            new = size / seconds
            self.read_bytes_per_s += _WEIGHT * (new - self.read_bytes_per_s)
        else:
            rest = max(0.0, seconds - size / self.read_bytes_per_s)
            self.read_fixed_s += _WEIGHT * (rest - self.read_fixed_s)

    def _write(self, item: Unwritten) -> int:
        if self._stopping.is_set():  # before others make way for it
            return 0
        began = self._clock()
        try:
            size = self.store.write(item, self._pace)
        except _Stopped:
            return 0
        if size:
            self._count(writes=1, write_bytes=size, write_s=self._clock() - began)
        return size

    def _pace(self, count: int) -> None:
        """Wait until `count` more bytes are within the rate; a pause earns no burst."""
        if self._stopping.is_set():
            raise _Stopped
        if self._rate is None or self._finishing.is_set():
            return
        now = self._clock()
        self._free_at = max(self._free_at, now) + count / self._rate
        self._sleep(self._free_at - now)
        if self._stopping.is_set():
            raise _Stopped

    def _landed(self, pinned: Stored | None, size: int) -> None:
        if pinned:
            self.store.unpin(pinned)
        with self._lock:
            self._fetching_bytes -= size
        self.notify()

    def _written(self, size: int) -> None:
        with self._lock:
            self._pending_bytes -= size
        self.notify()

    def _count(self, **more: float) -> None:
        with self._lock:
            sums = {name: getattr(self._counters, name) + count for name, count in more.items()}
            self._counters = replace(self._counters, **sums)


def _bytes(item: Unwritten) -> int:
    """What it keeps in memory."""
    arrays = [array for piece in item.pieces for array in piece.rows.values()]
    arrays += item.state.values()
    if item.logits is not None:
        arrays.append(item.logits)
    return sum(array.nbytes for array in arrays)
