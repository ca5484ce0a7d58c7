"""The answer that a client gets: whole, as a stream of events, or flowing through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from controller.schema.errors import RoundhouseError
from gateway.protocols.common import errors
from gateway.protocols.common.dialect import Dialect, EventStream
from gateway.protocols.common.request import InferenceRequest
from gateway.server.asgi import error_headers
from gateway.server.call import header_lines

JSON_LINE: Final = b"content-type: application/json\r\n"
_EVENT_STREAM_LINES: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"  # a proxy in front must not collect the events
)


class AnsweredCall(Protocol):
    """What an answer goes to: a client's `ClientCall`, or what stands in its place."""

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """See ClientCall, as for the others."""

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None: ...

    def send_part(self, part: bytes) -> None: ...

    def end_response(self, last_part: bytes = b"") -> None: ...

    def break_off(self) -> None: ...


class DiscardingCall:
    """Takes what a `ClientCall` sends."""

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """See ClientCall, as for the others."""

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None: ...

    def send_part(self, part: bytes) -> None: ...

    def end_response(self, last_part: bytes = b"") -> None: ...

    def break_off(self) -> None: ...


class RecordingCall:
    """Passes a stream on to `call`, and before that each part of it to `recorders`."""

    def __init__(self, call: AnsweredCall) -> None:
        self.call = call
        self.recorders: list[Callable[[bytes], None]] = []

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """See ClientCall, as for the others."""
        self.call.send_whole(status, lines, body)

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        self._record(first_part)
        self.call.start_response(status, lines, first_part)

    def send_part(self, part: bytes) -> None:
        self._record(part)
        self.call.send_part(part)

    def end_response(self, last_part: bytes = b"") -> None:
        if last_part:
            self._record(last_part)
        self.call.end_response(last_part)

    def break_off(self) -> None:
        self.call.break_off()

    def _record(self, part: bytes) -> None:
        for take_part in self.recorders:
            take_part(part)


class ClientResponse:
    """One answer. Its form is open until the first byte is sent; from then on errors travel in that form."""

    __slots__ = (
        "_call",
        "_is_stream",
        "_now",
        "broken_off_code",
        "client_gone",
        "dialect",
        "error",
        "events",
        "first_byte_at",
        "is_ended",
        "last_sent_at",
        "lines",
        "request",
        "request_id",
        "status",
    )

    def __init__(self, call: AnsweredCall, dialect: Dialect, request_id: str, now: Callable[[], float]) -> None:
        """`now` gives monotonic seconds."""
        self._call: AnsweredCall = call
        self._now = now
        self._is_stream = False
        self.dialect = dialect
        self.request_id = request_id
        self.request: InferenceRequest | None = None
        """What is answered, once that is known."""
        self.lines = b""
        """Header lines of every form of this answer."""
        self.events: EventStream | None = None
        """The stream that passes through; how it fails depends on what has passed."""
        self.status = 0
        """0: nothing was sent yet."""
        self.first_byte_at: float | None = None
        """When the first byte of the engine's was sent, or of an error; heartbeats are none."""
        self.last_sent_at = 0.0
        self.error: bytes | None = None
        """Body of the error that was told, or would have been in an answer that had not begun."""
        self.broken_off_code: str | None = None
        """Code of the error that ended an answer after its status was sent."""
        self.is_ended = False
        self.client_gone = False
        """Nobody waited for its end."""

    def detach_client(self) -> None:
        """Go on without the client: what is sent from now on, nobody gets."""
        if isinstance(self._call, RecordingCall):
            self._call.call = DiscardingCall()
        else:
            self._call = DiscardingCall()

    def record_parts(self, take_part: Callable[[bytes], None]) -> None:
        """Call `take_part` with each part of a stream that is sent from now on, before the client gets it and whether
        or not the client is there. A part is whole events, perhaps with `[DONE]`, or a comment."""
        if not isinstance(self._call, RecordingCall):
            self._call = RecordingCall(self._call)
        self._call.recorders.append(take_part)

    @property
    def id_lines(self) -> bytes:
        """Header lines that name the request."""
        name, request_id = self.dialect.id_header, self.request_id.encode()
        lines = b"x-request-id: %b\r\n" % request_id
        return lines if name is None else lines + b"%b: %b\r\n" % (name, request_id)

    def send_events(self, events: bytes) -> None:
        """Send whole events; the first ones commit the answer to being a stream."""
        self.last_sent_at = now = self._now()
        if self.first_byte_at is None:
            self.first_byte_at = now
        if self.status:
            self._call.send_part(events)
        else:
            self._commit_stream(events)

    def send_heartbeat(self, now: float) -> None:
        """Break the silence."""
        self.send_comment(self.dialect.heartbeat, now)

    def send_comment(self, comment: bytes, now: float) -> None:
        """Send what is no part of the answer. Stands between events, because `send_events` is given whole ones only."""
        self.last_sent_at = now
        if self.status and not self._is_stream:
            return  # something else came, and flows
        if self.status:
            self._call.send_part(comment)
        else:
            self._commit_stream(comment)

    def _commit_stream(self, first_part: bytes) -> None:
        self.status = 200
        self._is_stream = True
        self._call.start_response(200, self.lines + _EVENT_STREAM_LINES, first_part)

    def send_part(self, status: int, lines: bytes, part: bytes) -> None:
        """Send a part of an answer that is too long to be held; `status` and `lines` count for the first part.

        Raises:
            RoundhouseError: the answer is committed to being a stream, and this is none.
        """
        if self._is_stream:
            raise RoundhouseError("engine_disconnected", "The engine answered a stream with something else.")
        if self.status:
            self._call.send_part(part)
        else:
            self.status = status
            self.first_byte_at = self._now()
            self._call.start_response(status, self.lines + lines, part)

    def end_response(self, last_part: bytes = b"") -> None:
        """End a stream, or an answer that flows through."""
        self.is_ended = True
        self._call.end_response(last_part)

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a complete answer. One that comes when a stream is committed becomes its last events."""
        self.is_ended = True
        if status >= 400:
            self.error = body
        if self.first_byte_at is None:
            self.first_byte_at = self._now()
        if self.status:
            self._call.end_response(self.dialect.error_as_events(body, self.request))
        elif status >= 400 and self._is_told_by_events(body):
            self.broken_off_code = errors.decode_json(body)["error"]["code"]
            self._commit_stream(self.dialect.error_as_events(body, self.request))
            self._call.end_response()
        else:
            self.status = status
            self._call.send_whole(status, self.lines + lines, body)

    def _is_told_by_events(self, error: bytes) -> bool:
        return self.request is not None and self.request.stream and self.dialect.is_told_by_events(error)

    def send_error(self, error: RoundhouseError) -> None:
        """Tell the client of `error`, in the form that is left."""
        if self.is_ended:
            return
        self.error = body = self.dialect.error_body(error, self.request_id)
        if not self.status:
            self.send_whole(error.entry.status, header_lines(error_headers(error)), body)
            return
        self.broken_off_code = error.entry.code
        self.is_ended = True
        if not self._is_stream:
            self._call.break_off()
        elif self.events is not None:
            self._call.end_response(self.events.fail_stream(error, self.request_id))
        else:
            self._call.end_response(self.dialect.error_as_events(body, self.request))
