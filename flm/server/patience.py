"""How long a connection may hold on to the server, and how large a head it may send: uvicorn's own
protocol waits for ever, and has no JSON for what is no request.

Invariants:
  * A connection that has begun a request's head, or none at all, ends after `upload_s_max`.
  * One that takes nothing of a reply ends after STALL_S_MAX, with what was still to be sent.
"""

import asyncio
from http import HTTPStatus

from flm.errors import BadRequest, FlmError
from flm.server.faults import fault
from flm.server.wire import encode, too_slow

HEAD_BYTES_MAX = 2**16
STALL_S_MAX = 60.0  # a client that takes nothing for so long has left


def patient_protocol(upload_s_max: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 protocol with an end to its patience."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        _head_ends: asyncio.TimerHandle | None = None
        _stall_ends: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._head_ends = self.loop.call_later(upload_s_max, self._end_head)

        def connection_lost(self, exc: Exception | None) -> None:
            _stop(self._head_ends)
            _stop(self._stall_ends)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_answering():
                _stop(self._head_ends)
                self._head_ends = None
            elif self._head_ends is None:
                self._head_ends = self.loop.call_later(upload_s_max, self._end_head)

        def send_400_response(self, msg: str) -> None:
            if not self._is_answering():
                self.transport.write(_response(_no_request()))
            self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stall_ends = self.loop.call_later(STALL_S_MAX, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _stop(self._stall_ends)

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            if self.transport.get_write_buffer_size():  # the last reply was never read
                self.transport.abort()

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _end_head(self) -> None:
            self._head_ends = None
            if self._is_answering() or self.transport.is_closing():
                return
            if self.conn.trailing_data[0]:  # a head begun is told; a socket just held is not
                self.transport.write(_response(too_slow(upload_s_max, "head")))
            self.transport.close()

    return Patient


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _no_request() -> BadRequest:
    return BadRequest(
        f"The request's head is not HTTP/1.1, or has more than {HEAD_BYTES_MAX:,} bytes",
        fix="send it as HTTP/1.1, with fewer headers",
    )


def _response(error: FlmError) -> bytes:
    body, reason = encode(fault(error)), HTTPStatus(error.status).phrase.encode()
    return (
        b"HTTP/1.1 %d %b\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    ) % (error.status, reason, len(body), body)
