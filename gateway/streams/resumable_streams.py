"""Resumable streams of a gateway: requests open and end them, clients look them up, read and stop them.

Adds access checks, files and the clock to `StreamRegistry`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from gateway.routing.live_routes import LiveRoutes
from gateway.storage.visibility import may_see_model
from gateway.streams.errors import stream_not_found
from gateway.streams.recovery import recover_streams
from gateway.streams.registry import StreamRegistry
from gateway.streams.stream import ResumableStream, StreamState
from gateway.streams.stream_folder import StreamFolder
from gateway.streams.stream_totals import StreamTotals
from gateway.tenancy.api_keys import Caller

logger = logging.getLogger(__name__)

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

    async def remove_expired(self) -> None:
        """Remove expired streams every `gc_s` seconds. Never returns: runs until its task is cancelled."""
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
