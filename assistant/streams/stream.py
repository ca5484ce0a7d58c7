"""One resumable stream: the ring of its newest bytes, its state, its readers and its file, and the errors of streams.
Pure but for the file's protocol.

Functions that return a RoundhouseError leave it to the caller to raise it, or to send it as a stream's last event.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from contract.errors import RoundhouseError
from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.protocols.common.stream_ids import ID_HEADER
from gateway.protocols.common.streams import data_of, end_of_events, last_event, split_events
from gateway.protocols.responses.replayed_events import end_interrupted, read_number

_EVENT_END: Final = re.compile(rb"\n(\r?\n)")


def add_ids(events: bytes, offset: int) -> bytes:
    """Return `events` with an `id: N` line in each event. N is the offset after the event, counted without `id:` lines.

    `events` is a part of a stream that begins at `offset`, which may lie within an event, and ends with a whole event.
    The `id:` line is the event's last line, so an event whose beginning is not in `events` gets one, too.
    """
    parts, start = [], 0
    for match in _EVENT_END.finditer(events):
        parts += [events[start : match.start(1)], b"id: %d\n" % (offset + match.end()), match.group(1)]
        start = match.end()
    parts.append(events[start:])
    return b"".join(parts)


def find_offset(ring: ByteRing, number: int) -> int | None:
    """Return the offset at which to begin reading so as to get every event whose `sequence_number` is `number` or
    greater and none with a smaller number. None: the ring has dropped one of these events or a part of it, or may have.

    A `number` beyond the last event yields the offset after that event. Comments have no number and are skipped.
    """
    start = offset = ring.first_offset
    has_all = start == 0  # events from `start` on
    while block := ring.read(offset):
        last_number = read_number(last_event(block))
        if last_number is not None and last_number < number:
            offset += len(block)
            start, has_all = offset, True
            continue
        for event in split_events(block):
            offset += len(event)
            event_number = read_number(event)
            if event_number is None:
                continue
            if event_number >= number:
                is_first = event_number == number and event.startswith(b"event:")
                return start if has_all or is_first else None
            start, has_all = offset, True
    return start if has_all else None


_DONE: Final = b"[DONE]"
_MESSAGE_STOP: Final = re.compile(rb'\A\s*\{\s*"type"\s*:\s*"(message_stop|error)"')
_RESPONSES: Final = "/v1/responses"
_MESSAGES: Final = "/v1/messages"


def cut_torn_event(sent: bytes) -> bytes:
    """Return `sent` without a torn event at its end. A killed process may have written a part of an event to the file;
    no reader got that part, since readers get whole events only."""
    return sent[: end_of_events(sent)]


def is_complete(path: str, events: bytes) -> bool:
    """Return whether `events` end with the final event of the API at `path`: `message_stop` or `error` for
    `/v1/messages`, `[DONE]` for every other path. False for a stream that was cut, or has no events."""
    data = data_of(last_event(events))
    return _MESSAGE_STOP.search(data) is not None if path == _MESSAGES else data.strip() == _DONE


def error_events(path: str, error: RoundhouseError, request_id: str) -> bytes:
    """Return the bytes of the events that report `error` in the form of the API at `path`, terminator included. Nothing
    may follow them. `path` must be the path of an API that streams, such as `/v1/messages`; a path of no API raises
    KeyError."""
    dialect = SERVING_OPTIONS[path][0].dialect
    return dialect.error_as_events(dialect.error_body(error, request_id))


def end_events(path: str, events: bytes, error: RoundhouseError, request_id: str) -> bytes:
    """Return the bytes that end a stream of the API at `path` with `error`. `events`: all that was sent of it, from
    which `/v1/responses` takes the response's id, the next sequence number and the output so far; for other APIs they
    do not matter. Raises KeyError for a path of no API."""
    if path == _RESPONSES:
        return end_interrupted(events, error.build_envelope(request_id).error.model_dump())
    return error_events(path, error, request_id)


BLOCK_BYTES: Final = 64 * 1024
"""Bytes that one `read` returns at most, unless one event is longer. Bounds the time that a reader far behind takes
from the event loop."""
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_LONGEST_BLANK_LINE: Final = 4


class ByteRing:
    """The kept bytes of a stream: offsets `first_offset` (inclusive) to `end_offset` (exclusive). It does not limit
    itself: the owner calls `drop_oldest`. Its end is the end of an event, since only whole events are appended."""

    __slots__ = ("_bytes", "first_offset")

    def __init__(self, first_offset: int = 0) -> None:
        self._bytes = bytearray()
        self.first_offset = first_offset
        """Offset of the first kept byte; grows when old bytes are dropped."""

    @property
    def size(self) -> int:
        """Number of bytes of the stream that are still kept."""
        return len(self._bytes)

    @property
    def end_offset(self) -> int:
        """Offset after the last byte: the length of the stream so far, dropped bytes included."""
        return self.first_offset + len(self._bytes)

    def append(self, events: bytes) -> None:
        """Append whole events. The caller must not append a part of an event."""
        self._bytes += events

    def read(self, offset: int, most: int = BLOCK_BYTES) -> bytes:
        """Return bytes from `offset` on, up to the end of the last event that ends within `most` bytes; a single longer
        event is returned whole. Empty: `offset` is the end of the stream so far.

        `offset` must be at least `first_offset` (AssertionError otherwise), and may lie within an event.
        """
        start = offset - self.first_offset
        assert start >= 0, "the reader has lost its place"
        kept = self._bytes
        end = len(kept)
        if end - start > most:
            end = _find_last_event_end(kept, start, start + most) or _find_event_end(kept, start + most)
        with memoryview(kept) as view:
            return bytes(view[start:end])

    def read_all(self) -> bytes:
        """Return a copy of all kept bytes."""
        return bytes(self._bytes)

    def drop_oldest(self, count: int) -> None:
        """Drop the oldest whole events that together have at least `count` bytes. Where this would drop everything,
        drop exactly `count` bytes instead, and so a part of the last event."""
        end = _find_event_end(self._bytes, count)
        if end >= len(self._bytes):
            end = min(count, len(self._bytes))
        del self._bytes[:end]
        self.first_offset += end

    def clear(self) -> None:
        """Drop all bytes. `end_offset` stays."""
        self.first_offset += len(self._bytes)
        self._bytes = bytearray()


def _find_event_end(events: bytearray, position: int) -> int:
    """Return where the first event ends that ends at `position` or later; the end of `events` if none does."""
    for match in _BLANK_LINE.finditer(events, max(0, position - _LONGEST_BLANK_LINE)):
        if match.end() >= position:
            return match.end()
    return len(events)


def _find_last_event_end(events: bytearray, start: int, stop: int) -> int:
    """Return where the last event ends that ends after `start` and at `stop` or before; 0: none does."""
    after_lf = events.rfind(b"\n\n", start, stop) + 2
    after_crlf = events.rfind(b"\n\r\n", max(start, after_lf), stop) + 3
    return max(after_lf if after_lf > 1 else 0, after_crlf if after_crlf > 2 else 0)


FILE_LOST: Final = b": this stream is kept in no file any more, and does not survive the gateway\n\n"
"""SSE comment that is appended to a stream when its file cannot be written any more."""


class StreamState(StrEnum):
    """State of a stream. LIVE until its exchange ends; the other states are final."""

    LIVE = "live"
    """The generation goes on, or waits in the queue."""
    DONE = "done"
    """The answer is complete."""
    CUT = "cut"
    """An error ended the stream; its last event reports the error."""
    STOPPED = "stopped"
    """A client stopped the stream; its last event says so."""


class StreamProducer(Protocol):
    """The request that makes a live stream, as streams know it. Implemented by `stream_hooks.StreamRun`."""

    @property
    def is_loading(self) -> bool:
        """True while the request waits for its model's load and no response head was sent, so that it may still be
        refused."""

    @property
    def client_id(self) -> bytes:
        """`Caller.client_id` of the caller whose limits the request counts against."""

    def stop(self, error: RoundhouseError) -> None:
        """Cancel the request, in its engine too. `error` becomes the stream's last event, unless the request is a
        stored response, which ends as cancelled. The request may end before the return, or soon after. Harmless once it
        has ended."""


class StreamReader(Protocol):
    """One reader of a stream, which calls `ResumableStream.read` at its own pace. Registered in `readers`."""

    def take_events(self, events: bytes, offset: int) -> None:
        """Called in the event loop after `events` were appended at `offset`. A reader that has all bytes before
        `offset` may use `events`; another one reads the stream. Must not raise or block."""

    def wake(self) -> None:
        """Called in the event loop after the stream ended or was removed. Must not raise or block."""


class StreamFile(Protocol):
    """Storage of one stream that outlives the process. `DiskFile` is one."""

    def append(self, events: bytes, ring: ByteRing) -> bool:
        """Write whole events; call it before they are appended to `ring`. Return False if they could not be written:
        the file is removed then, and must not be used again. Never raises OSError. `ring` holds the stream's earlier
        bytes, from which a new file is written."""

    def end(self, state: StreamState) -> bool:
        """Record the final state. The bytes stay. Return False if the state could not be recorded: the file is removed
        then, and must not be used again."""

    def remove(self) -> None:
        """Delete the stored bytes. Harmless if there are none. Never raises OSError: a failure is logged."""


class ResumableStream:
    """The stream of one request, kept from its first byte until its TTL after the end. Made, ended and removed by
    `StreamRegistry`; appended to by the request's hooks; read by any number of readers."""

    __slots__ = (
        "__weakref__",
        "_file",
        "_make_room",
        "began_at",
        "ended_at",
        "has_file",
        "id",
        "is_removed",
        "is_stopping",
        "kept_until",
        "model",
        "path",
        "producer",
        "readers",
        "removal_events",
        "request_id",
        "ring",
        "room",
        "state",
        "tenant",
    )

    def __init__(
        self,
        make_room: Callable[[ResumableStream], None],
        tenant: str,
        stream_id: str,
        *,
        model: str,
        path: str,
        request_id: str,
        now: float,
    ) -> None:
        """`make_room`: called when the ring holds more than `room`; it raises `room`, or drops the oldest events.
        `stream_id`: the value of `X-Conversation-Id`, or a response's id. `path`: the API's path. `now`: Unix time in
        seconds."""
        self._make_room = make_room
        self._file: StreamFile | None = None
        self.tenant = tenant
        self.id = stream_id
        """The value of the request's `X-Conversation-Id`; a response's id for a background response without one."""
        self.model = model
        """Name of the declared model, not an alias."""
        self.path = path
        """Path of the API, for example `/v1/messages`. It decides the form of error events."""
        self.request_id = request_id
        """The request's `x-request-id`."""
        self.began_at = now
        """Unix time in seconds at which the stream was opened."""
        self.ended_at: float | None = None
        """Unix time in seconds of the end; None while live."""
        self.kept_until: float | None = None
        """Monotonic seconds at which the TTL is over; None while live."""
        self.state = StreamState.LIVE
        self.ring = ByteRing()
        self.room = 0
        """Bytes that `ring` may hold, granted by the registry."""
        self.readers: set[StreamReader] = set()
        """Readers that are called when the stream changes. Each adds itself and removes itself when it stops
        reading."""
        self.has_file = False
        """Whether a file has all bytes of `ring`, so that the stream survives the gateway."""
        self.is_stopping = False
        """A client has asked to stop or replace the stream; its end follows."""
        self.producer: StreamProducer | None = None
        """The request that makes the stream; None: it has ended, or has not registered yet."""
        self.is_removed = False
        """The registry has dropped the stream, and its ring is empty. It may still be live then: nothing more is kept.
        """
        self.removal_events = b""
        """Last events for readers that had not read all when the stream was removed; empty: they get their
        `lost_events`."""

    def keep_in_file(self, file: StreamFile) -> None:
        """Write everything that is appended from now on to `file`, too. Call before the first `append`."""
        self._file = file
        self.has_file = True

    def append(self, events: bytes) -> None:
        """Append whole events and call the readers' `take_events`. The file gets the events first, so no reader has
        bytes that the file lacks. The oldest events are dropped if the registry grants no more room; a removed stream
        keeps none. If the file fails, FILE_LOST is appended and the stream goes on in memory. Never raises."""
        file, ring = self._file, self.ring
        if file is not None and not file.append(events, ring):
            self._file, self.has_file = None, False
            events += FILE_LOST
        offset = ring.end_offset
        ring.append(events)
        if ring.size > self.room:
            self._make_room(self)
        for reader in tuple(self.readers):
            reader.take_events(events, offset)

    def read(self, offset: int, lost_events: bytes) -> tuple[bytes, bool]:
        """Return bytes from `offset` on, up to the end of an event, and whether they are the last for this reader.

        Empty and False: nothing new; read again when `take_events` or `wake` is called. True: send the bytes, if any,
        and stop reading. `lost_events` are returned, as the last, where the ring has dropped bytes at `offset`. A
        reader of a removed stream gets `removal_events` as the last, or `lost_events` where they are empty, unless it
        has all bytes of an ended stream, one at least.
        """
        ring = self.ring
        if self.is_removed:
            # Who waited for the first byte of a stream that ended without one is told why.
            is_told = bool(ring.end_offset) or not self.removal_events
            has_all = is_told and offset >= ring.end_offset and self.state is not StreamState.LIVE
            return b"" if has_all else self.removal_events or lost_events, True
        if offset < ring.first_offset:
            return lost_events, True
        events = ring.read(offset)
        return events, not events and self.state is not StreamState.LIVE

    def close_file(self) -> None:
        """Record the final state in the file, if there is one. Call after `state` is set. A file that cannot record it
        is removed, and `has_file` becomes False."""
        if self._file is not None and not self._file.end(self.state):
            self._file, self.has_file = None, False

    def remove_file(self) -> None:
        """Delete the file, if there is one. Later bytes are kept in memory only."""
        file, self._file, self.has_file = self._file, None, False
        if file is not None:
            file.remove()

    def stop(self, error: RoundhouseError) -> None:
        """Cancel the request that makes the stream, because a client asked for it. The stream then ends, possibly
        before this returns, with `error` as its last event. Without a `producer` this only sets `is_stopping`."""
        self.is_stopping = True
        if self.producer is not None:
            self.producer.stop(error)

    def wake_readers(self) -> None:
        """Wake all readers, after the stream ended or was removed."""
        for reader in tuple(self.readers):
            reader.wake()


RETRY_LOADING_S: Final = 1.0
"""Seconds in the `Retry-After` of `stream_loading`."""


def stream_not_found(stream_id: str) -> RoundhouseError:
    """Return 404 `stream_not_found`: the tenant has no stream of this id, or the key may not see its model."""
    message = f"There is no stream of the id {stream_id!r:.100}, or it is kept no longer."
    return RoundhouseError("stream_not_found", message, param="conv_id")


def offset_lost(offset: int, first_offset: int) -> RoundhouseError:
    """Return 400 `stream_offset_lost`: the reader asked for `offset`, which is less than the first kept byte."""
    message = (
        f"The stream is kept from byte {first_offset} on, and byte {offset} was asked for: read it from there, or ask "
        "anew."
    )
    return RoundhouseError("stream_offset_lost", message, param="from")


def offset_ahead(offset: int, end_offset: int) -> RoundhouseError:
    """Return 400 `stream_offset_lost`: the reader asked for `offset`, which is greater than the length so far. A reader
    cannot have received those bytes, so it probably read an earlier stream of the same id."""
    message = f"The stream has {end_offset} bytes, and byte {offset} was asked for: is it another stream of this id?"
    return RoundhouseError("stream_offset_lost", message, param="from")


def reader_too_slow() -> RoundhouseError:
    """Return `stream_offset_lost` for a reader so slow that the ring dropped bytes before the reader got them. It is
    rendered as that reader's last event."""
    message = "The reader was so slow that bytes that it had not read are kept no longer."
    return RoundhouseError("stream_offset_lost", message)


def reading_stopped() -> RoundhouseError:
    """Return `gateway_stopping`, the last event of a reader that is still behind when the gateway shuts down."""
    return RoundhouseError("gateway_stopping", "The gateway was stopped: read on from here when it is back.")


def stream_loading(model: str) -> RoundhouseError:
    """Return 503 `model_loading` with `Retry-After`: the request waits for its model to load, and may be refused."""
    message = f"The stream begins when the model {model!r} is loaded."
    return RoundhouseError("model_loading", message, retry_after_s=RETRY_LOADING_S)


def stream_stopped() -> RoundhouseError:
    """Return `stream_stopped`, the last event of a live stream that a client has stopped with DELETE."""
    return RoundhouseError("stream_stopped", "The request was cancelled: a client has stopped its stream.")


def stream_replaced() -> RoundhouseError:
    """Return `stream_replaced`, the last event of a live stream that ends because a later request of the same tenant
    has taken its id."""
    message = f"The request was cancelled: another one has the same {ID_HEADER}, and an id has one stream at a time."
    return RoundhouseError("stream_replaced", message)


def streams_full(max_bytes: int) -> RoundhouseError:
    """Return 503 `streams_full`: live streams alone take all of `max_bytes`, so that no ended stream can make room."""
    message = (
        f"All resumable streams together may take {max_bytes // 1024} KiB, and those that are live take all of it: try "
        f"again later, or without {ID_HEADER}."
    )
    return RoundhouseError("streams_full", message)


def gateway_restarted() -> RoundhouseError:
    """Return `gateway_restarted`, the last event of a stream whose gateway was killed before the end."""
    return RoundhouseError(
        "gateway_restarted", "The gateway ended before the answer was complete. All that was sent of it is kept."
    )
