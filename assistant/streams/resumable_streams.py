"""Resumable streams of a gateway: requests open and end them, clients look them up, read and stop them, and those in
the files of an earlier process are taken over. Adds access checks, files and the clock to `StreamRegistry`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from assistant.storage.pagination import may_see_model
from assistant.streams.registry import StreamRegistry, StreamTotals
from assistant.streams.stream import (
    ResumableStream,
    StreamState,
    add_ids,
    cut_torn_event,
    end_events,
    gateway_restarted,
    is_complete,
    stream_not_found,
)
from assistant.streams.stream_folder import KeptStream, StreamFolder, remove_file
from contract.errors import RoundhouseError
from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.protocols.common.large_body import LargeBody
from gateway.routing.table import LiveRoutes
from gateway.server.call import Handler
from gateway.tenancy.api_keys import Caller

logger = logging.getLogger(__name__)


class FedCall(Protocol):
    """What a feed uses of the client's call: an attribute and methods of `gateway.server.call.ClientCall`."""

    handler: Handler | None

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        """Begin the answer; `send_part` and `end_response` follow. `lines`: header lines, each with CRLF. `first_part`:
        not empty. See `ClientCall.start_response`."""

    def send_part(self, part: bytes) -> None: ...

    def end_response(self, last_part: bytes = b"") -> None: ...


class ClientFeed:
    """Sends a stream to the client whose request makes it: a `StreamReader`, and the handler of the client's call in
    place of the exchange, once the stream is open.

    Making one does not put it in the exchange's place: set the call's `handler` to it (`Exchange.detach_client`). The
    exchange, which makes the stream, does not depend on the client: it goes on when the client leaves or reads too
    slowly. Use it in the event loop; it ends with the stream or the client.
    """

    __slots__ = ("_call", "_is_full", "_is_started", "_lines", "_lost_events", "_offset", "_on_gone", "_stream")

    def __init__(
        self,
        stream: ResumableStream,
        call: FedCall,
        lines: bytes,
        lost_events: bytes,
        on_gone: Callable[[], None],
        *,
        sent_bytes: int = 0,
    ) -> None:
        """Register as a reader of `stream`. Call `wake` once afterwards to send what the stream has.

        Args:
            stream: the stream to send.
            call: the client's call, which this feed ends.
            lines: header lines of the 200 response, each with its line end.
            lost_events: error events to send last if the client is so slow that the ring drops bytes it has not got.
            on_gone: called once if the client leaves before the end.
            sent_bytes: bytes of the stream that the client was sent before, after the response's head; 0: not even the
                head was sent.
        """
        self._stream = stream
        self._call: FedCall | None = call
        self._lines = lines
        self._lost_events = lost_events
        self._on_gone = on_gone
        self._offset = sent_bytes
        self._is_started = sent_bytes > 0
        self._is_full = False
        stream.readers.add(self)

    def take_events(self, events: bytes, offset: int) -> None:
        """Send `events`, which the stream got at `offset`, if the client has all that is before them and reads fast
        enough; otherwise read on in the stream, as `wake` does. See `stream.StreamReader`."""
        if offset != self._offset or self._is_full or self._call is None:
            self.wake()
            return
        self._offset += len(events)
        self._send(events)

    def wake(self) -> None:
        """Send what the stream has, until the client's buffer is full or there is no more. At the stream's end, or if
        the ring has dropped bytes that the client lacks, end the client's answer. See `stream.StreamReader`."""
        while self._call is not None and not self._is_full:
            events, is_end = self._stream.read(self._offset, self._lost_events)
            if is_end:
                self._end(events)
            elif events:
                self._offset += len(events)
                self._send(events)
            else:
                return

    def _send(self, events: bytes) -> None:
        assert self._call is not None
        if self._is_started:
            self._call.send_part(events)
        else:
            self._is_started = True
            self._call.start_response(200, self._lines, events)

    def _end(self, last_events: bytes) -> None:
        call = self._release()
        assert call is not None
        if self._is_started:
            call.end_response(last_events)
        else:
            call.start_response(200, self._lines, last_events)
            call.end_response()

    def _release(self) -> FedCall | None:
        self._stream.readers.discard(self)
        call, self._call = self._call, None
        if call is not None:
            call.handler = None  # an idle connection remembers its last call
        return call

    # From the client's connection

    def take_body(self, body: bytes | LargeBody) -> None:
        """Do nothing. `gateway.server.call.Handler` requires this method, but it is never called here.

        The exchange took the body before this feed took its place.
        """

    def fail_request(self, error: RoundhouseError) -> None:
        """Do nothing. `gateway.server.call.Handler` requires this method, but it is called only for an incomplete body.

        Here the body is complete. An error of the exchange reaches the client as the last events of the stream.
        """

    def client_gone(self) -> None:
        """Stop reading the stream and call `on_gone`, because the client has left; the exchange goes on. Does nothing
        once the answer has ended."""
        if self._release() is not None:
            self._on_gone()

    def client_full(self) -> None:
        """Stop sending until `client_ready`, because the client reads too slowly. Meanwhile the ring keeps the bytes,
        as far as it has room."""
        self._is_full = True

    def client_ready(self) -> None:
        """Send on what the stream has got since `client_full`: the client has read enough."""
        self._is_full = False
        self.wake()


class _Waiter:
    """A `StreamReader` whose task awaits the next wake-up."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def take_events(self, events: bytes, offset: int) -> None:
        """See StreamReader. Several parts are read together once the task has its turn."""
        self._event.set()

    def wake(self) -> None:
        """Have the reader's task look for new bytes, as `StreamReader` says."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until one of the methods above was called since the last return; several calls count as one."""
        await self._event.wait()
        self._event.clear()


async def replay_stream(
    stream: ResumableStream,
    offset: int,
    *,
    with_ids: bool,
    lost_events: bytes,
    find_stop_events: Callable[[], bytes | None],
) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream from `offset` on, in blocks of whole events, until the stream ends or is removed.

    Args:
        stream: the stream to read, live or ended.
        offset: where to begin: at the ring's `first_offset` or later, at its `end_offset` or before.
        with_ids: add an `id:` line to each event (see `add_ids`).
        lost_events: error events to yield last if the reader is so slow that the ring drops bytes it has not read, or
            the stream is removed without last events of its own.
        find_stop_events: called after each block while the reader is behind. Returns the error events to yield last
            because the gateway is shutting down; None: the gateway is not, and reading goes on.
    """
    waiter = _Waiter()
    stream.readers.add(waiter)
    try:
        while True:
            events, is_end = stream.read(offset, lost_events)
            if is_end:
                if events:
                    yield events
                return
            if not events:
                await waiter.wait()
                continue
            yield add_ids(events, offset) if with_ids else events
            offset += len(events)
            if offset < stream.ring.end_offset and (last_events := find_stop_events()) is not None:
                yield last_events
                return
    finally:
        stream.readers.discard(waiter)


class RecoveredStream(NamedTuple):
    """A stream of an earlier process that the registry has now."""

    stream: ResumableStream
    response_id: str | None
    """Id of the background response that the stream belongs to; None: it belongs to none."""


def recover_streams(
    folder: StreamFolder, registry: StreamRegistry, now: float, uptime: float
) -> Iterator[RecoveredStream]:
    """Add the streams in `folder` to `registry`, and yield each that was added.

    Iterate to the end: the work is done as the iterator advances. It locks the folder for this gateway until
    `StreamFolder.close`, and yields nothing if another gateway holds the lock or there is no folder.

    Streams that had ended keep their state. Interrupted ones get the error event `gateway_restarted`, in their files
    too, unless their last event was the final one. Not added, and their files removed: streams past their TTL, older
    ones of the same tenant and id, those of an unknown API, those for which there is no room, and unreadable ones
    (logged). `now`: Unix time in seconds. `uptime`: the same moment in monotonic seconds. Blocks on the disk. Raises
    OSError if the folder cannot be read.
    """
    kept_streams = sorted(folder.list_kept(), key=lambda each: _ended_at(each, now))
    newest = _find_newest(kept_streams)
    for kept in kept_streams:
        is_wanted = kept in newest and _ended_at(kept, now) + registry.ttl_s > now
        stream = _recover_stream(folder, registry, kept, now, uptime) if is_wanted else None
        if stream is None:
            remove_file(kept.path)
        else:
            yield RecoveredStream(stream, kept.header.response_id)


def _recover_stream(
    folder: StreamFolder, registry: StreamRegistry, kept: KeptStream, now: float, uptime: float
) -> ResumableStream | None:
    header = kept.header
    stream = ResumableStream(
        registry.make_room,
        header.tenant,
        header.id,
        model=header.model,
        path=header.path,
        request_id=header.request_id,
        now=header.began_at,
    )
    ring = stream.ring
    ring.first_offset = header.first_offset
    try:
        stream.state, path, events = _end_interrupted(folder, kept)
    except OSError as error:
        logger.error("%s cannot be read: %s", kept.path, error)  # noqa: TRY400 - the disk's error
        return None
    ring.append(events)
    if ring.size > registry.ring_bytes:
        ring.drop_oldest(ring.size - registry.ring_bytes)
    stream.ended_at = _ended_at(kept, now)
    # A file from the future ended now.
    stream.kept_until = min(uptime, stream.ended_at + (uptime - now)) + registry.ttl_s
    stream.keep_in_file(folder.adopt_file(path, header))
    if not registry.recover_stream(stream):
        remove_file(path)
        return None
    return stream


def _end_interrupted(folder: StreamFolder, kept: KeptStream) -> tuple[StreamState, Path, bytes]:
    """Return the state of a kept stream, the path of its file, and its events. An interrupted stream is ended first, in
    its file too; a failure to write that is logged only.

    Raises:
        OSError: the file cannot be read.
    """
    events = kept.read_events()
    if kept.state is not StreamState.LIVE:
        return kept.state, kept.path, events
    api_path, events = kept.header.path, cut_torn_event(events)
    state, last_events = StreamState.DONE, b""
    if not is_complete(api_path, events):
        state = StreamState.CUT
        last_events = end_events(api_path, events, gateway_restarted(), kept.header.request_id)
    path = kept.path
    try:
        path = folder.end_interrupted(kept, len(events), last_events, state)
    except OSError as error:
        logger.error("%s cannot be ended: %s", kept.path, error)  # noqa: TRY400 - the disk's error
    return state, path, events + last_events


def _find_newest(kept_streams: Sequence[KeptStream]) -> set[KeptStream]:
    """Return, for each tenant and id, the stream that began last: a process may have been killed between making a
    stream and removing the one that it replaces. Streams of unknown API paths are left out."""
    newest: dict[tuple[str, str], KeptStream] = {}
    for kept in sorted(kept_streams, key=lambda each: each.header.began_at):
        if kept.header.path in SERVING_OPTIONS:
            newest[kept.header.tenant, kept.header.id] = kept
    return set(newest.values())


def _ended_at(kept: KeptStream, now: float) -> float:
    """Return the Unix time in seconds of the stream's end. An interrupted stream ends now, so that its TTL begins when
    it can be read again."""
    return now if kept.state is StreamState.LIVE else kept.changed_at


RELEASED_POLL_S: Final = 0.1
"""Seconds between two looks whether the earlier process has released the folder."""
REMOVED_AT_ONCE: Final = 32
"""Most expired streams removed without giving other tasks of the event loop their turn."""


class ResumableStreams:
    """All resumable streams of one gateway. Call every method from the event loop's thread."""

    def __init__(
        self,
        registry: StreamRegistry,
        folder: StreamFolder | None,
        live: LiveRoutes,
        clock: Callable[[], float],
        *,
        gc_s: float,
    ) -> None:
        """`folder` None: streams are kept in memory alone. `clock` returns Unix time in seconds. `gc_s`: seconds
        between two removals of expired streams."""
        self.registry = registry
        self._folder = folder
        self._live = live
        self._clock = clock
        self._gc_s = gc_s
        self._recovered = asyncio.Event()
        self._recovered.set()
        self._recover: Callable[[], None] = lambda: None
        self._of_responses: WeakValueDictionary[tuple[str, str], ResumableStream] = WeakValueDictionary()
        """Key: tenant and id of a background response."""
        self.is_stopping = False
        """The gateway is shutting down; `replay_stream` ends readers that are behind."""
        self.read_count = 0
        """GET requests that read a stream, since the start."""
        self.recovered_count = 0
        """Streams of an earlier process that were taken over at the start."""

    # For requests that make them

    def open_stream(
        self, caller: Caller, stream_id: str, *, model: str, path: str, request_id: str, response_id: str | None
    ) -> ResumableStream:
        """Make a live stream of the caller's tenant, with a file if one can be written.

        The stream replaces the tenant's stream of the same id, whose request is cancelled. The caller of this method
        sets `producer`, appends the events, and calls `end_stream` once.

        `model`: the model's own name, not an alias; whether the caller may use it is not checked. `path`: of the API.
        `response_id`: id of the background response that the request makes; None: it makes none.

        Raises:
            RoundhouseError: `streams_full`.
        """
        stream = self.registry.open_stream(
            caller.tenant, stream_id, model=model, path=path, request_id=request_id, now=self._clock()
        )
        file = self._folder.new_file(stream, response_id) if self._folder is not None else None
        if file is not None:
            stream.keep_in_file(file)
        if response_id is not None:
            self._of_responses[caller.tenant, response_id] = stream
        return stream

    def is_made_for(self, caller: Caller, stream_id: str) -> bool:
        """Return whether the tenant has a live stream of this id that counts against this caller's own limits. A new
        request with the id replaces the stream and ends its request, so it does not count as one more concurrent
        request of the caller."""
        stream = self.registry.find_stream(caller.tenant, stream_id)
        return stream is not None and stream.producer is not None and stream.producer.client_id == caller.client_id

    def end_stream(self, stream: ResumableStream, state: StreamState) -> None:
        """Set a live stream's final state, record it in the stream's file, and wake the readers. The TTL begins now.
        Does nothing if the stream has ended."""
        self.registry.end_stream(stream, state, time.monotonic(), self._clock())

    def remove_stream(self, stream: ResumableStream, told_events: bytes) -> None:
        """Drop a stream with its bytes and its file; the request of a live one is not cancelled.

        Does nothing if it was removed before. `told_events`: last events for readers that have not read all; empty:
        they get the events that they have for lost bytes (see `ResumableStream.read`).
        """
        self.registry.remove_stream(stream, told_events)

    # For clients that ask for them

    def find_stream(self, caller: Caller, stream_id: str) -> ResumableStream:
        """Return the stream of this id, live or ended.

        Raises:
            RoundhouseError: `stream_not_found`: the caller's tenant has none, or the caller's key may not use its
                model.
        """
        stream = self.registry.find_stream(caller.tenant, stream_id)
        if stream is None or not self._may_see(caller, stream):
            raise stream_not_found(stream_id)
        return stream

    def find_response_stream(self, caller: Caller, response_id: str) -> ResumableStream | None:
        """Return the stream of a background response. None: the stream is not kept, or never was; the response belongs
        to another tenant; or the caller's key may not use its model."""
        stream = self._of_responses.get((caller.tenant, response_id))
        if stream is None or stream.is_removed or not self._may_see(caller, stream):
            return None
        return stream

    def remove_response_stream(self, caller: Caller, response_id: str) -> None:
        """Drop the stream of a deleted background response. Harmless if there is none that the caller may see."""
        stream = self.find_response_stream(caller, response_id)
        if stream is not None:
            self.registry.remove_stream(stream)

    def find_variants(self, caller: Caller, stream_ids: Sequence[str]) -> Sequence[ResumableStream]:
        """Return the streams that the caller may see with one of these ids, or with one of them and a model
        (`id::model`). Each stream is listed once; ids without a stream are skipped."""
        found = (stream for each in stream_ids for stream in self.registry.find_variants(caller.tenant, each))
        return [stream for stream in dict.fromkeys(found) if self._may_see(caller, stream)]

    def stop_stream(self, caller: Caller, stream_id: str) -> None:
        """Serve a client's DELETE: cancel a live stream's request, whose bytes stay readable; remove a stream that is
        done or cut; leave a stopped one as it is. Succeeds again for an id whose stream was removed recently.

        Raises:
            RoundhouseError: `stream_not_found`: there is and was no stream of this id that the caller may see.
        """
        stream = self.registry.find_stream(caller.tenant, stream_id)
        if stream is not None and self._may_see(caller, stream):
            self.registry.stop_stream(stream)
        elif stream is not None or not self.registry.was_removed(caller.tenant, stream_id):
            raise stream_not_found(stream_id)

    @property
    def totals(self) -> StreamTotals:
        """Counts for metrics, as of now."""
        registry, folder = self.registry, self._folder
        return StreamTotals(
            registry.live_count,
            registry.ended_count,
            registry.count_readers(),
            registry.used_bytes,
            registry.evicted_count,
            registry.refused_count,
            self.read_count,
            self.recovered_count,
            folder.lost_count if folder is not None else 0,
        )

    # The life of the gateway

    def recover_streams(self, now: float) -> None:
        """Take over the streams in the files of an earlier process that have not expired at `now`, Unix time in
        seconds. Call once, before the first request. Blocks. Locks the folder until `close`; does nothing if another
        gateway holds the lock.

        Files that cannot be read are logged and removed, and do not raise. Raises OSError if the folder itself cannot
        be read.
        """
        if self._folder is None:
            return
        for recovered in recover_streams(self._folder, self.registry, now, time.monotonic()):
            self.recovered_count += 1
            if recovered.response_id is not None:
                self._of_responses[recovered.stream.tenant, recovered.response_id] = recovered.stream
        if self.recovered_count:
            logger.info("%d streams of an earlier gateway can be read again", self.recovered_count)

    def recover_later(self, read_now: Callable[[], float], within_s: float) -> None:
        """Have `recover_streams` called by `remove_expired`, once the earlier process has released the folder, or after
        `within_s` seconds. Until then streams are made in memory alone. `read_now` returns Unix time in seconds."""
        if self._folder is None:
            return
        self._folder.waits = True
        self._recovered.clear()
        deadline = time.monotonic() + within_s
        self._recover = lambda: self._recover_if_released(read_now, deadline)

    def _recover_if_released(self, read_now: Callable[[], float], deadline: float) -> None:
        assert self._folder is not None
        if self._folder.is_held_elsewhere() and time.monotonic() < deadline:
            return
        self._folder.waits = False
        self._recovered.set()
        try:
            self.recover_streams(read_now())
        except OSError as error:
            logger.error("the streams of the earlier gateway cannot be read: %s", error)  # noqa: TRY400 - the disk's fault

    async def wait_until_recovered(self, caller: Caller, stream_id: str) -> None:
        """Wait while the stream of this id may be one of the earlier process, which still ends its requests. Call
        before `find_stream` and `stop_stream`."""
        if self.registry.find_stream(caller.tenant, stream_id) is None:
            await self._recovered.wait()

    async def remove_expired(self) -> None:
        """Remove expired streams every `gc_s` seconds. Never returns: runs until its task is cancelled."""
        while not self._recovered.is_set():
            self._recover()
            await asyncio.sleep(RELEASED_POLL_S)
        while True:
            await asyncio.sleep(self._gc_s)
            while self.registry.remove_expired(time.monotonic(), REMOVED_AT_ONCE):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0)

    def stop_readers(self) -> None:
        """Begin the shutdown: wake the readers of live streams, so that those that are behind end with
        `gateway_stopping`. The requests that make the streams go on until they end or are ended."""
        self.is_stopping = True
        for stream in self.registry.list_live():
            stream.wake_readers()

    def close(self) -> None:
        """Release the lock on the folder, so that another gateway can use the files. Call last."""
        if self._folder is not None:
            self._folder.close()

    def _may_see(self, caller: Caller, stream: ResumableStream) -> bool:
        return may_see_model(self._live.current, caller, stream.model)
