"""The answer that a client gets, its header lines, and how the body of an engine's answer becomes it.

A `ClientResponse` is whole, a stream of events, or in parts as they come from the engine; a `BodyRelay` passes the
engine's body on event by event, gathered from events, or whole. `ResponseHeaders` makes the header lines that the
gateway itself adds to answers and to requests to engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from contract.errors import RoundhouseError
from gateway.admission.ticket import AT_ONCE, QueuePlace
from gateway.ingress.access_rules import Cors, refusal_headers
from gateway.protocols.common import errors
from gateway.protocols.common.dialect import (
    Dialect,
    EventStream,
    EventTooLongError,
    StreamCollector,
    TokenEventCounter,
    Usage,
)
from gateway.protocols.common.errors import CACHE_EXHAUSTED, ENGINE_ERROR, client_status
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.streams import find_error, split_events
from gateway.server.asgi import Header, error_headers
from gateway.server.call import header_lines
from gateway.tenancy.api_keys import UNFIT_TEXT, Caller, clean_client_text, find_client_text
from gateway.tenancy.rate_limits import client_headers

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
        they may refer back to it. Does nothing without recorders."""
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
        stream. Does nothing if the answer is no stream. `now`: monotonic seconds."""
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

    def break_off(self) -> None:
        """Leave the client with an incomplete answer, because its end could not be made or recorded."""
        self.is_ended = True
        self._call.break_off()


_CACHE_EXHAUSTED: Final = CACHE_EXHAUSTED.encode()
STREAM_OVERHEAD: Final = 16
"""The most bytes of a stream for one byte of the blocking answer that is gathered from it. An engine that sends more
than this times the bytes that may be held is cut off."""


class CacheExhaustedError(Exception):
    """The engine ended the request, because its KV cache has no room for the request beside the others.

    Raised by `BodyRelay.finish_answer` only, and handled by `Attempt`; clients never see it.
    """

    def __init__(self, *, may_resend: bool) -> None:
        """`may_resend`: the client has no part of an answer. False: its answer has ended with the engine's error."""
        super().__init__()
        self.may_resend = may_resend


class BodyRelay(Protocol):
    """Passes the body of one engine's answer on to a `ClientResponse`.

    `Attempt` makes one when an engine's answer begins, calls `feed_data` for each part, and `finish_answer` once after
    the last part. After an error, neither is called again.
    """

    def feed_data(self, data: bytes) -> None:
        """Take a part of the body, cut anywhere, and send what the client can get of it now.

        Raises:
            RoundhouseError: `engine_disconnected`: the answer is too long, or cannot be passed on. The client is not
                answered: do that, and close the engine's connection.
        """

    def finish_answer(self) -> None:
        """Complete the client's answer after the last part. An error of the engine is passed on as the client's answer.

        Call once.

        Raises:
            CacheExhaustedError: the engine ended the request, because its KV cache is full.
            RoundhouseError: the engine's answer was not complete (`engine_disconnected`), or cannot be translated. The
                client's answer is not complete then.
        """

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the engine; None: it has sent no count yet."""

    @property
    def events_passed(self) -> int:
        """Events of a stream received so far, about one per token; 0 for a blocking answer."""

    def count_tokens(self) -> int:
        """Return the generated tokens of a stream received so far (`TokenEventCounter`); 0 for a blocking answer."""


class EventRelay:
    """Passes a stream on as a stream: whole events, as soon as they are complete. A `BodyRelay`. Making one sets
    `answer.events`, by which an error ends the stream in the right form."""

    __slots__ = ("_answer", "_counter", "_events", "events_passed")

    def __init__(self, answer: ClientResponse, events: EventStream) -> None:
        self._answer = answer
        self._events = answer.events = events
        self._counter = TokenEventCounter()
        self.events_passed = 0

    def feed_data(self, data: bytes) -> None:
        """Take a part of the engine's stream, cut anywhere, and send the events that it completes, translated.

        Raises:
            RoundhouseError: `engine_disconnected` if an event is too long. The client is not answered: the caller must
                do that.
        """
        self.events_passed = self._counter.take_data(data)
        try:
            whole_events = self._events.feed_data(data)
        except EventTooLongError as error:
            raise _disconnected_error(f"it sent {error}") from error
        if whole_events:
            self._answer.send_events(whole_events)

    def finish_answer(self) -> None:
        """End the client's stream as its API family ends streams. Call once, after the last part.

        Raises:
            RoundhouseError: `engine_disconnected` if the engine's stream ended without its last event; the client's
                answer is not complete then.
            CacheExhaustedError: the stream ended with the engine's error of a full KV cache, which the client got;
                `may_resend` is False.
        """
        last_events = self._events.finish_stream()
        if not self._events.is_complete:
            if last_events:
                self._answer.send_events(last_events)
            raise _disconnected_error("its stream ended without its last event")
        if last_events and not self._answer.status:
            self._answer.send_events(last_events)
            last_events = b""
        self._answer.end_response(last_events)
        if self._has_exhausted():
            raise CacheExhaustedError(may_resend=False)

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the engine; None: it has sent no count yet."""
        return self._events.usage

    def count_tokens(self) -> int:
        """Return the generated tokens so far: llama-server's own count if the newest parts have it, else by events."""
        return self._counter.count_tokens()

    def _has_exhausted(self) -> bool:
        """Whether an event of the last two reads, over which an event may be cut, reports an exhausted KV cache."""
        data = self._counter.tail
        if _CACHE_EXHAUSTED not in data:
            return False
        return any(errors.is_exhausted(find_error(event)) for event in split_events(data))


class CollectingRelay:
    """Gathers an engine's stream into one blocking answer. A `BodyRelay`.

    A stream of more than `STREAM_OVERHEAD` times `hold_bytes` bytes fails with `engine_disconnected`.
    """

    __slots__ = ("_answer", "_bytes_left", "_collector", "_counter", "events_passed")

    def __init__(self, answer: ClientResponse, collector: StreamCollector, hold_bytes: int) -> None:
        self._answer = answer
        self._collector = collector
        self._bytes_left = hold_bytes * STREAM_OVERHEAD
        self._counter = TokenEventCounter()
        self.events_passed = 0

    def feed_data(self, data: bytes) -> None:
        """Add a part of the engine's stream, cut anywhere, to the answer. Sends nothing.

        Raises:
            RoundhouseError: `engine_disconnected` if the stream or one of its events is too long.
        """
        self.events_passed = self._counter.take_data(data)
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise _disconnected_error("it sent more than a blocking answer may hold")
        try:
            self._collector.feed_data(data)
        except EventTooLongError as error:
            raise _disconnected_error(f"it sent {error}") from error

    def finish_answer(self) -> None:
        """Send the answer that was gathered, or the engine's error, as a whole answer. Call once, after the last part.

        Raises:
            RoundhouseError: `engine_disconnected` if the stream ended without its last event, or an error of the
                translation; the client is not answered then.
            CacheExhaustedError: the engine ended the stream because its KV cache is full; the client got nothing.
        """
        result = self._collector.build_result()
        if result is None:
            raise _disconnected_error("its stream ended without its last event")
        status, body = result
        if status >= 400:
            if errors.reports_exhausted(body):
                raise CacheExhaustedError(may_resend=True)
            engine_status, status = status, errors.answer_status(status, body)
            body = self._answer.dialect.engine_error_body(engine_status, body, self._answer.request_id)
        self._answer.send_whole(status, JSON_LINE, body)

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the engine; None: it has sent no count yet."""
        return self._collector.usage

    def count_tokens(self) -> int:
        """Return the generated tokens so far: llama-server's own count if the newest parts have it, else by events."""
        return self._counter.count_tokens()


class WholeRelay:
    """Passes a blocking answer on when it is whole. A `BodyRelay`.

    A body of more than `hold_bytes` bytes is passed on in parts if `may_flow`; otherwise up to `STREAM_OVERHEAD` times
    as many bytes are held, and more fail with `engine_disconnected`. An error is never passed on in parts, because it
    must not reveal the engine's address: of a long one the first `hold_bytes` are used.
    """

    __slots__ = (
        "_answer",
        "_engine_status",
        "_held_parts",
        "_hold_bytes",
        "_is_error",
        "_is_flowing",
        "_lines",
        "_may_flow",
        "_size",
        "_status",
        "_translate",
        "events_passed",
        "usage",
    )

    def __init__(
        self,
        answer: ClientResponse,
        status: int,
        headers: list[Header],
        hold_bytes: int,
        translate: Callable[[bytes], bytes] | None,
        *,
        may_flow: bool,
    ) -> None:
        """`status`, `headers`: the engine's. `hold_bytes`: bytes of the body to hold in memory.

        `translate`: makes the client's body of the engine's, unless that is an error; None: it stays as it is.
        `may_flow`: a body that is too long to hold is passed on in parts, untranslated.
        """
        self._answer = answer
        self._engine_status = status
        self._status = client_status(status)
        self._lines = _lines(headers, is_error=self._status >= 400)
        self._translate = translate
        self._is_error = self._status >= 400
        self._may_flow = may_flow
        self._hold_bytes = hold_bytes if may_flow or self._is_error else hold_bytes * STREAM_OVERHEAD
        self._held_parts: list[bytes] = []
        self._size = 0
        self._is_flowing = False
        self.events_passed = 0
        self.usage: Usage | None = None

    def feed_data(self, data: bytes) -> None:
        """Hold a part of the body, or send it once the body is passed on in parts. Of an error, parts beyond
        `hold_bytes` are dropped.

        Raises:
            RoundhouseError: `engine_disconnected` if the body is too long to be held and must not be passed on in
                parts, or if a stream has begun, so that no other answer is possible.
        """
        if self._is_flowing:
            self._answer.send_part(self._status, b"", data)
            return
        if self._is_error and self._size > self._hold_bytes:
            return
        self._held_parts.append(data)
        self._size += len(data)
        if self._size > self._hold_bytes and not self._is_error:
            if not self._may_flow:
                raise _disconnected_error("it sent more than a blocking answer may hold")
            held_body = b"".join(self._held_parts)
            self._is_flowing = True
            self.usage = self._find_usage(held_body)
            self._held_parts.clear()
            self._answer.send_part(self._status, self._lines, held_body)

    def finish_answer(self) -> None:
        """Send what was held, translated, or the engine's error in the form of the client's API family; or end the
        answer that was sent in parts. Call once, after the last part.

        Raises:
            CacheExhaustedError: the engine's error says that its KV cache is full; the client is not answered.
            RoundhouseError: `engine_disconnected` if a stream has begun, or what the translation raises; the client's
                answer is not complete then.
        """
        answer = self._answer
        if self._is_flowing:
            answer.end_response()
            return
        held_parts = self._held_parts
        body = held_parts[0] if len(held_parts) == 1 else b"".join(held_parts)
        if self._is_error:
            if errors.reports_exhausted(body):
                raise CacheExhaustedError(may_resend=True)
            self._status = errors.answer_status(self._engine_status, body)
            body = answer.dialect.engine_error_body(self._engine_status, body, answer.request_id)
            if b"retry-after:" not in self._lines:
                retry = errors.retry_header(self._status, body).items()
                self._lines += header_lines((name.encode(), value.encode()) for name, value in retry)
            if answer.status:
                answer.broken_off_code = ENGINE_ERROR.code
        elif answer.status:
            raise _disconnected_error("it answered a stream with something else")
        else:
            self.usage = self._find_usage(body)
            if self._translate is not None:
                body = self._translate(body)
        answer.send_whole(self._status, self._lines, body)

    def count_tokens(self) -> int:
        """Return 0: the tokens of a blocking answer cannot be counted as they come."""
        return 0

    def _find_usage(self, body: bytes) -> Usage | None:
        request = self._answer.request
        assert request is not None, "it was sent"
        return self._answer.dialect.find_usage(body, request)


def _lines(headers: list[Header], *, is_error: bool) -> bytes:
    type_line, retry_lines = JSON_LINE, b""
    for name, value in headers:
        if name == b"content-type" and not is_error:
            type_line = b"content-type: %b\r\n" % value
        elif name == b"retry-after":
            retry_lines += b"retry-after: %b\r\n" % value
    return type_line + retry_lines


def _disconnected_error(cause: str) -> RoundhouseError:
    return RoundhouseError("engine_disconnected", f"The engine failed: {cause}.")


_TO_ENGINE: Final = (b"traceparent", b"tracestate")
"""Request headers of clients that are forwarded to engines. Never credentials."""
_AT_ONCE_LINES: Final = b"x-queue-position: 1\r\nx-queue-depth: 1\r\nx-estimated-wait-ms: 0\r\n"
_REMEMBERED: Final = 256
"""Maximum number of client header lines that are remembered."""


class ResponseHeaders:
    """Makes the header lines that the gateway itself adds to answers and to requests to engines.

    One object serves all requests. Lines are bytes, each with CRLF.
    """

    def __init__(self, cors: Cors) -> None:
        self._cors = cors
        self._clients: dict[bytes, bytes] = {}

    def client_headers(
        self,
        id_lines: bytes,
        headers: Sequence[Header],
        caller: Caller,
        place: QueuePlace | None,
        rate_lines: bytes,
    ) -> bytes:
        """Return the lines of every inference answer: request id, client id, place in the queue, rate limits, and CORS.

        `id_lines`, `rate_lines`: finished lines of the request id and of the rate limits. `headers`: the request's,
        with names in lower case. `place` None: the request was in no queue, so the lines of the place are left out.
        """
        lines = b"%b%b%b%b" % (
            id_lines,
            self._client_line(headers, caller),
            b"" if place is None else _place_lines(place),
            rate_lines,
        )
        return lines + self._cors.header_lines(headers) if self._cors.is_on else lines

    def refusal_lines(self, error: RoundhouseError, caller: Caller) -> bytes:
        """Return the header lines that a refusal of a request with `error` has in addition to those of
        `client_headers`.

        That is `x-ratelimit-client` for `rate_limit_exceeded`, and `WWW-Authenticate` for `invalid_api_key`; empty for
        other codes.
        """
        if error.entry.code == "rate_limit_exceeded":
            return header_lines(client_headers(caller))
        return header_lines(refusal_headers(error))

    def engine_headers(self, request_id: str, headers: Sequence[Header]) -> bytes:
        """Return the lines of a request to an engine: its id, and the client's `traceparent` and `tracestate`.

        Trace headers with unfit characters are left out. `headers`: the client's, with names in lower case, of which no
        other is forwarded.
        """
        lines = b"x-request-id: %b\r\n" % request_id.encode()
        for name, value in headers:
            if name in _TO_ENGINE and not UNFIT_TEXT.search(value):
                lines += b"%b: %b\r\n" % (name, value)
        return lines

    def _client_line(self, headers: Sequence[Header], caller: Caller) -> bytes:
        if caller.name is not None or caller.is_limited:
            return b"x-client-id: %b\r\n" % caller.client_id
        client_text = find_client_text(headers)
        line = self._clients.get(client_text)
        if line is None:
            line = b"x-client-id: %b\r\n" % clean_client_text(client_text)
            if len(self._clients) < _REMEMBERED:
                self._clients[client_text] = line
        return line


def _place_lines(place: QueuePlace) -> bytes:
    if place is AT_ONCE:
        return _AT_ONCE_LINES
    lines = b"x-queue-position: %d\r\nx-queue-depth: %d\r\n" % (place.position, place.depth)
    return lines if place.wait_ms is None else lines + b"x-estimated-wait-ms: %d\r\n" % place.wait_ms
