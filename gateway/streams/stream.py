"""One resumable stream: its ring of bytes, its state, its readers and its file. Pure but for the file's protocol."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from controller.schema.errors import RoundhouseError
from gateway.streams.ring import ByteRing

if TYPE_CHECKING:
    from gateway.streams.registry import StreamRegistry


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
        "_registry",
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
        registry: StreamRegistry,
        tenant: str,
        stream_id: str,
        *,
        model: str,
        path: str,
        request_id: str,
        now: float,
    ) -> None:
        """`stream_id`: the value of `X-Conversation-Id`, or a response's id. `path`: the API's path. `now`: Unix time
        in seconds."""
        self._registry = registry
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
            self._registry.make_room(self)
        for reader in tuple(self.readers):
            reader.take_events(events, offset)

    def read(self, offset: int, lost_events: bytes) -> tuple[bytes, bool]:
        """Return bytes from `offset` on, up to the end of an event, and whether they are the last for this reader.

        Empty and False: nothing new; read again when `take_events` or `wake` is called. True: send the bytes, if any,
        and stop reading. `lost_events` are returned, as the last, where the ring has dropped bytes at `offset`. A
        reader of a removed stream gets `removal_events` as the last, or `lost_events` where they are empty, unless it
        has all bytes of an ended stream.
        """
        ring = self.ring
        if self.is_removed:
            has_all = offset >= ring.end_offset and self.state is not StreamState.LIVE
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
