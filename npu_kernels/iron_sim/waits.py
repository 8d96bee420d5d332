"""Who waits for whom, once nothing moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from npu_kernels.iron_sim.cores import Core
from npu_kernels.iron_sim.faults import Deadlock
from npu_kernels.iron_sim.lower import stream_name
from npu_kernels.iron_sim.pools import Pool, PoolSink, PoolSource
from npu_kernels.iron_sim.streams import HostSink, Stream

SEQUENCE = "the sequence"


@dataclass(frozen=True, slots=True)
class Standstill:
    streams: Mapping[str, Stream]  # by name
    cores: Mapping[str, Core]
    awaited: str | None  # the fifo whose transfer the sequence waits for; None once it has ended

    def deadlock(self, start: str) -> Deadlock:
        """A cycle that `start` waits in, or, for want of one, a chain that ends with nobody."""
        path: list[str] = []
        chain: list[str] = []
        cycle = self._search(start, path, set(), chain)
        if cycle:
            return Deadlock(tuple(map(self._told, [*cycle, cycle[0]])), closed=True)
        return Deadlock(tuple(map(self._told, chain)), closed=False)

    def _search(
        self, node: str, path: list[str], seen: set[str], chain: list[str]
    ) -> list[str] | None:
        if node in path:
            return path[path.index(node) :]
        if node in seen:
            return None
        seen.add(node)
        path.append(node)
        for following in self._blockers(node):
            if cycle := self._search(following, path, seen, chain):
                return cycle
        if not chain:
            chain.extend(path)
        path.pop()
        return None

    def _blockers(self, node: str) -> Iterable[str]:
        if node == SEQUENCE:
            return [stream_name(self.awaited)] if self.awaited else []
        if node in self.streams:
            return self._stream_blockers(self.streams[node])
        core = self.cores[node]
        if core.ended or core.wait is None:
            return []
        if core.wait.pool is None:
            return [SEQUENCE]
        return _users(core.wait.pool, core.wait.readers)

    def _stream_blockers(self, stream: Stream) -> list[str]:
        found: list[str] = []
        for sink in stream.sinks:
            if not sink.room():
                found += _users(sink.pool, True) if isinstance(sink, PoolSink) else [SEQUENCE]
        if found:
            return found
        source = stream.source
        return _users(source.pool, False) if isinstance(source, PoolSource) else [SEQUENCE]

    def _told(self, node: str) -> str:
        if node == SEQUENCE:
            return f"{node} awaits '{self.awaited}'" if self.awaited else f"{node} has ended"
        if node in self.streams:
            return f"{node} {_stuck(self.streams[node])}"
        core = self.cores[node]
        if core.ended:
            return f"worker {node} has ended"
        return f"worker {node} {core.wait.what if core.wait else 'is idle'}"


def _users(pool: Pool, readers: bool) -> list[str]:
    return pool.lagging(readers)


def _stuck(stream: Stream) -> str:
    full = [sink for sink in stream.sinks if not sink.room()]
    if any(isinstance(sink, HostSink) for sink in full):
        return "has no drain"
    if full:
        return "has no room to go to"
    return "has nothing to send" if isinstance(stream.source, PoolSource) else "has no fill"
