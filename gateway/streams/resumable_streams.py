"""The resumable streams of a gateway: what requests begin, and what clients may ask of them."""

from __future__ import annotations

import asyncio
import logging
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
"""Expired streams, whose files are removed: then others have their turn."""


class ResumableStreams:
    """Belongs to the event loop."""

    def __init__(
        self,
        registry: StreamRegistry,
        folder: StreamFolder | None,
        live: LiveRoutes,
        clock: Callable[[], float],
        *,
        gc_s: float,
    ) -> None:
        """`folder` None: streams are kept in memory alone. `clock` gives Unix time. `gc_s`: seconds between looks for
        streams whose time is over."""
        self.registry = registry
        self._folder = folder
        self._live = live
        self._clock = clock
        self._gc_s = gc_s
        self._of_responses: WeakValueDictionary[tuple[str, str], ResumableStream] = WeakValueDictionary()
        """By tenant and id of a response that is made in the background."""
        self.is_stopping = False
        """The gateway ends, and readers with it."""
        self.read_count = 0
        """How often a stream was asked for again."""
        self.recovered_count = 0
        """How many streams of an earlier process can be read again."""

    # For requests that make them

    def open_stream(
        self, caller: Caller, stream_id: str, *, model: str, path: str, request_id: str, response_id: str | None
    ) -> ResumableStream:
        """Begin a stream; see `StreamRegistry.open_stream`. `response_id`: of the response in the background whose
        stream it is, if it is one's.

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
        """Whether there is a live stream of this id, which counts for the caller's limits."""
        stream = self.registry.find_stream(caller.tenant, stream_id)
        return stream is not None and stream.producer is not None and stream.producer.client_id == caller.client_id

    def end_stream(self, stream: ResumableStream, state: StreamState) -> None:
        """Note that a stream has ended."""
        self.registry.end_stream(stream, state, self._clock())

    def remove_stream(self, stream: ResumableStream, told_events: bytes) -> None:
        """Keep a stream no longer; see `StreamRegistry.remove_stream`."""
        self.registry.remove_stream(stream, told_events)

    # For clients that ask for them

    def find_stream(self, caller: Caller, stream_id: str) -> ResumableStream:
        """Return a stream of the caller's tenant, of a model that its key is for.

        Raises:
            RoundhouseError: `stream_not_found`.
        """
        stream = self.registry.find_stream(caller.tenant, stream_id)
        if stream is None or not self._may_see(caller, stream):
            raise stream_not_found(stream_id)
        return stream

    def find_response_stream(self, caller: Caller, response_id: str) -> ResumableStream | None:
        """Return the stream of a response in the background; None: it is not kept, or not the caller's."""
        stream = self._of_responses.get((caller.tenant, response_id))
        if stream is None or stream.is_removed or not self._may_see(caller, stream):
            return None
        return stream

    def remove_response_stream(self, caller: Caller, response_id: str) -> None:
        """Keep the stream of a response in the background no longer: the response was deleted. Harmless without one."""
        stream = self.find_response_stream(caller, response_id)
        if stream is not None:
            self.registry.remove_stream(stream)

    def find_variants(self, caller: Caller, stream_ids: Sequence[str]) -> Sequence[ResumableStream]:
        """Return the caller's streams of these ids, and of these ids with a model, each once."""
        found = (stream for each in stream_ids for stream in self.registry.find_variants(caller.tenant, each))
        return [stream for stream in dict.fromkeys(found) if self._may_see(caller, stream)]

    def stop_stream(self, caller: Caller, stream_id: str) -> None:
        """Stop a live stream, or remove one that has ended; see `StreamRegistry.stop_stream`.

        Raises:
            RoundhouseError: `stream_not_found`: there is none, and there was none of late.
        """
        stream = self.registry.find_stream(caller.tenant, stream_id)
        if stream is not None and self._may_see(caller, stream):
            self.registry.stop_stream(stream)
        elif stream is not None or not self.registry.was_removed(caller.tenant, stream_id):
            raise stream_not_found(stream_id)

    @property
    def totals(self) -> StreamTotals:
        """As they are now."""
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

    def recover_streams(self) -> None:
        """Take over what an earlier process left. Called once, before the first request."""
        if self._folder is None:
            return
        for recovered in recover_streams(self._folder, self.registry, self._clock()):
            self.recovered_count += 1
            if recovered.response_id is not None:
                self._of_responses[recovered.stream.tenant, recovered.response_id] = recovered.stream
        if self.recovered_count:
            logger.info("%d streams of an earlier gateway can be read again", self.recovered_count)

    async def remove_expired(self) -> None:
        """Remove streams whose time after their end is over, every `gc_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._gc_s)
            while self.registry.remove_expired(self._clock(), REMOVED_AT_ONCE):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0)

    def stop_readers(self) -> None:
        """End the reading of streams: the gateway ends."""
        self.is_stopping = True
        for stream in self.registry.list_live():
            stream.wake_readers()

    def close(self) -> None:
        """Let another gateway have the files."""
        if self._folder is not None:
            self._folder.close()

    def _may_see(self, caller: Caller, stream: ResumableStream) -> bool:
        return may_see_model(self._live.current, caller, stream.model)
