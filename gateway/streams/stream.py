"""One resumable stream: its bytes, what has become of it, and who reads it. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from controller.schema.errors import RoundhouseError
from gateway.streams.ring import ByteRing

if TYPE_CHECKING:
    from gateway.streams.registry import StreamRegistry


FILE_LOST: Final = b": this stream is kept in no file any more, and does not survive the gateway\n\n"
"""A comment between the events of a stream whose file could not be written."""


class StreamState(StrEnum):
    """What has become of a stream."""

    LIVE = "live"
    """It goes on."""
    DONE = "done"
    """It is complete."""
    CUT = "cut"
    """An error has ended it, which its last event tells."""
    STOPPED = "stopped"
    """A client has stopped it, which its last event tells."""


class StreamProducer(Protocol):
    """The request whose stream it is."""

    @property
    def is_loading(self) -> bool:
        """Whether it waits for its model to be loaded, and nothing of its answer was sent."""

    @property
    def client_id(self) -> bytes:
        """Whose limits the request counts for: `Caller.client_id`."""

    def stop(self, error: RoundhouseError) -> None:
        """End the request, and tell `error` where nothing better can be told."""


class StreamReader(Protocol):
    """Somebody who reads a stream, at a pace of its own."""

    def wake(self) -> None:
        """Look at the stream: bytes have come, or its end, or it was removed."""


class StreamFile(Protocol):
    """Where the bytes of one stream are kept beside memory."""

    def append(self, events: bytes, ring: ByteRing) -> bool:
        """Write whole events, which `ring` does not have yet. False: they could not be written, and nothing of the
        stream is kept in the file any more."""

    def end(self, state: StreamState) -> None:
        """Note what has become of the stream."""

    def remove(self) -> None:
        """Keep nothing of the stream any more."""


class ResumableStream:
    """The stream of one request. `StreamRegistry` opens and ends it."""

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
        """`now` is Unix time."""
        self._registry = registry
        self._file: StreamFile | None = None
        self.tenant = tenant
        self.id = stream_id
        """As clients know it: what their `X-Conversation-Id` said."""
        self.model = model
        """The model's own name."""
        self.path = path
        """The API's path, which tells the family of the events."""
        self.request_id = request_id
        self.began_at = now
        self.ended_at: float | None = None
        """Unix time; None: it is live."""
        self.state = StreamState.LIVE
        self.ring = ByteRing()
        self.room = 0
        """Bytes that `ring` may have: set by the registry."""
        self.readers: set[StreamReader] = set()
        self.has_file = False
        """Whether all bytes in `ring` are in a file, too."""
        self.is_stopping = False
        """A client has stopped it, or replaced it by another."""
        self.producer: StreamProducer | None = None
        """None: it has ended, or not begun."""
        self.is_removed = False
        """It is kept no longer, and its ring is empty."""
        self.removal_events = b""
        """Events that tell a reader who has not read all why it was removed; empty: nothing but that it was."""

    def keep_in_file(self, file: StreamFile) -> None:
        """Write whatever is appended into `file`, too."""
        self._file = file
        self.has_file = True

    def append(self, events: bytes) -> None:
        """Add whole events, and wake the readers. What is in the file is there before any reader gets it."""
        file, ring = self._file, self.ring
        if file is not None and not file.append(events, ring):
            self._file, self.has_file = None, False
            events += FILE_LOST
        ring.append(events)
        if ring.size > self.room:
            self._registry.make_room(self)
        for reader in tuple(self.readers):
            reader.wake()

    def read(self, offset: int, lost_events: bytes) -> tuple[bytes, bool]:
        """Return some of the bytes from `offset` on, whole events at their end, and whether the reader has all then.
        Empty and False: wait for the next `wake`.

        `lost_events` stand for what is kept no longer: they tell the reader of that, and are the last.
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
        """Note in the file what has become of the stream."""
        if self._file is not None:
            self._file.end(self.state)

    def remove_file(self) -> None:
        """Keep the stream in no file any more."""
        file, self._file, self.has_file = self._file, None, False
        if file is not None:
            file.remove()

    def stop(self, error: RoundhouseError) -> None:
        """End the request whose stream it is, because a client wants it to end."""
        self.is_stopping = True
        if self.producer is not None:
            self.producer.stop(error)

    def wake_readers(self) -> None:
        """Tell the readers of an end or a removal."""
        for reader in tuple(self.readers):
            reader.wake()
