"""The answer that a client gets: whole, as a stream of events, or in parts as they come from the engine."""

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
EVENT_STREAM_LINES: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"  # a proxy in front must not collect the events
)


class AnsweredCall(Protocol):
    """Where a `ClientResponse` writes an answer: a client's `ClientCall`, or an object in its place.

    The methods have the contracts of those of `gateway.server.call.ClientCall`.
    """

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a complete answer. `lines`: header lines, each with CRLF, without Content-Length, which is added.

        Call once, and not after `start_response`. `ClientCall.send_whole` says more.
        """

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None: ...

    def send_part(self, part: bytes) -> None: ...

    def end_response(self, last_part: bytes = b"") -> None: ...

    def break_off(self) -> None: ...


class DiscardingCall:
    """An `AnsweredCall` that discards the answer: the client is gone, or gets the answer in another way."""

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Discard a complete answer, as the other methods discard the parts of one."""

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None: ...

    def send_part(self, part: bytes) -> None: ...

    def end_response(self, last_part: bytes = b"") -> None: ...

    def break_off(self) -> None: ...


class RecordingCall:
    """An `AnsweredCall` that gives each part of a stream to `recorders`, in order, and then passes it on to `call`.

    Parts of an answer that is no stream are recorded, too; whole answers are passed on without being recorded. What a
    recorder raises is raised, and `call` does not get the part. `call` may be replaced while the answer is under way.
    """

    def __init__(self, call: AnsweredCall) -> None:
        self.call = call
        self.recorders: list[Callable[[bytes], None]] = []

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Pass a complete answer on to `call`, without recording it."""
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
    """The client's answer to one request. The first byte decides its form: whole, stream or parts.

    Later errors have the same form. Belongs to its `Exchange`; relays, hooks and the clock write to it.
    """

    __slots__ = (
        "_call",
        "_now",
        "broken_off_code",
        "client_gone",
        "dialect",
        "error",
        "events",
        "first_byte_at",
        "is_ended",
        "is_stream",
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
        self.dialect = dialect
        self.request_id = request_id
        self.request: InferenceRequest | None = None
        """The request that is answered; None: its body is not read yet."""
        self.lines = b""
        """Header lines of the answer, whatever its form; each with its line end."""
        self.events: EventStream | None = None
        """The stream that is passed on, which knows how to end with an error; None: the engine has sent none."""
        self.status = 0
        """HTTP status; 0: nothing is sent yet."""
        self.first_byte_at: float | None = None
        """When the first byte of the answer or of an error was sent, in monotonic seconds. Comments do not count."""
        self.last_sent_at = 0.0
        self.error: bytes | None = None
        """JSON of the error that ended the answer; None: no error."""
        self.broken_off_code: str | None = None
        """Code of the error that ended the answer after its status was sent; None: no such error."""
        self.is_ended = False
        self.is_stream = False
        """Its form is a stream's: events were sent."""
        self.client_gone = False
        """The client left before the end of the answer."""

    def detach_client(self) -> None:
        """Discard what is sent from now on instead of sending it to the client. Recorders still get it."""
        if isinstance(self._call, RecordingCall):
            self._call.call = DiscardingCall()
        else:
            self._call = DiscardingCall()

    def record_parts(self, take_part: Callable[[bytes], None]) -> None:
        """Call `take_part` with each part of a stream that is sent from now on, before the client gets it and whether
        or not the client is there. A part is whole events, perhaps with `[DONE]`, or a comment.

        Every call adds a recorder; recorders are called in the order of their addition, until `stop_recording`. What
        `take_part` raises is raised by the method that sends the part, which then does not reach the client. A whole
        answer is not recorded; of one that is sent in parts (`send_part`), the recorders get the bytes, cut anywhere.
        """
        if not isinstance(self._call, RecordingCall):
            self._call = RecordingCall(self._call)
        self._call.recorders.append(take_part)

    def wrap_call(self, wrapper: RecordingCall) -> None:
        """Send the answer through `wrapper` from now on, which gets the recorders and the call that were there."""
        if isinstance(self._call, RecordingCall):
            wrapper.recorders, wrapper.call = self._call.recorders, self._call.call
        else:
            wrapper.call = self._call
        self._call = wrapper

    def stop_recording(self) -> None:
        """Remove all recorders that `record_parts` added, and what `wrap_call` set. Call at the end of the request:
        they may refer back to it.

        Does nothing without recorders.
        """
        if isinstance(self._call, RecordingCall):
            self._call = self._call.call

    @property
    def id_lines(self) -> bytes:
        """Header lines with the request's id, each with CRLF: `x-request-id`, and the API family's own name for it."""
        name, request_id = self.dialect.id_header, self.request_id.encode()
        lines = b"x-request-id: %b\r\n" % request_id
        return lines if name is None else lines + b"%b: %b\r\n" % (name, request_id)

    def send_events(self, events: bytes) -> None:
        """Send whole events; not empty. If nothing is sent yet, this begins a stream with status 200 and `lines`.

        Must not follow the end of the answer, which is not checked.
        """
        self.last_sent_at = now = self._now()
        if self.first_byte_at is None:
            self.first_byte_at = now
        if self.status:
            self._call.send_part(events)
        else:
            self._commit_stream(events)

    def send_heartbeat(self, now: float) -> None:
        """Send the comment by which the dialect keeps the connection alive. If nothing is sent yet, this begins a
        stream.

        Does nothing if the answer is no stream. `now`: monotonic seconds.
        """
        self.send_comment(self.dialect.heartbeat, now)

    def send_comment(self, comment: bytes, now: float) -> None:
        """Send an SSE comment. If nothing is sent yet, this begins a stream. Does nothing if the answer is no stream.

        A comment never splits an event, because `send_events` gets whole ones. `now`: monotonic seconds.
        """
        self.last_sent_at = now
        if self.status and not self.is_stream:
            return  # something else came, and flows
        if self.status:
            self._call.send_part(comment)
        else:
            self._commit_stream(comment)

    def _commit_stream(self, first_part: bytes) -> None:
        self.status = 200
        self.is_stream = True
        self._call.start_response(200, self.lines + EVENT_STREAM_LINES, first_part)

    def send_part(self, status: int, lines: bytes, part: bytes) -> None:
        """Send a part of an answer that is too long to be held; not empty. Call `end_response` after the last part.

        `status` and `lines` (header lines, each with CRLF) are used with the first part and ignored later.

        Raises:
            RoundhouseError: `engine_disconnected` if a stream has begun, so that another form of answer is impossible.
        """
        if self.is_stream:
            raise RoundhouseError("engine_disconnected", "The engine answered a stream with something else.")
        if self.status:
            self._call.send_part(part)
        else:
            self.status = status
            self.first_byte_at = self._now()
            self._call.start_response(status, self.lines + lines, part)

    def end_response(self, last_part: bytes = b"") -> None:
        """End a stream, or an answer that is sent in parts, after `last_part`, which may be empty. Call once."""
        self.is_ended = True
        self._call.end_response(last_part)

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a complete answer, and end it. `lines`: header lines beside those of `self.lines`, each with CRLF.

        If a stream has begun, `body` must be an error, which becomes the last events. If the API family reports an
        error by events, a request for a stream gets that error as a stream with status 200. Do not call after
        `send_part` or the end of the answer.
        """
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
        """End the answer with `error`, in the form that is still possible. Does nothing after the end.

        If nothing was sent yet, the error is sent as by `send_whole`, as a rule with its own status. A stream gets it
        as its last events. If an answer is sent in parts, the connection is broken off.
        """
        if self.is_ended:
            return
        self.error = body = self.dialect.error_body(error, self.request_id)
        if not self.status:
            self.send_whole(error.entry.status, header_lines(error_headers(error)), body)
            return
        self.broken_off_code = error.entry.code
        self.is_ended = True
        if not self.is_stream:
            self._call.break_off()
        elif self.events is not None:
            self._call.end_response(self.events.fail_stream(error, self.request_id))
        else:
            self._call.end_response(self.dialect.error_as_events(body, self.request))
