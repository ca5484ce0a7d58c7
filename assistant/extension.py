"""Adds the assistant to a gateway: its hooks, routes, tasks and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from assistant.api import conversations, retrieval, streams
from assistant.api.retrieval import RetrievalForward
from assistant.api.stored import declare_completions, declare_responses
from assistant.api.tools import PostedCalls, declare_mcp, declare_servers, declare_tools
from assistant.documents.document_search import DocumentSearch, ProgramProbe
from assistant.documents.reader import DocumentReader
from assistant.hooks.completion_hooks import completion_hooks
from assistant.hooks.document_hooks import (
    file_hooks,
    file_search_hooks,
    grounded_chat_hooks,
    grounded_message_hooks,
    kept_file_hooks,
)
from assistant.hooks.response_hooks import response_hooks
from assistant.hooks.response_session import ResponseSessions
from assistant.hooks.stream_hooks import stream_hooks
from assistant.hooks.tool_loop import ToolLoops, counted_tool_hooks, tool_loop_hooks
from assistant.mcp_server.handlers import McpToolCalls, ServedTools, ToolHandlers
from assistant.storage.completions import StoredCompletions
from assistant.storage.conversations import Conversations
from assistant.storage.records import HistoryBounds, StoredTotals
from assistant.storage.responses import StoredResponses
from assistant.storage.store import StateStore, StoreError
from assistant.streams.registry import StreamRegistry, StreamTotals
from assistant.streams.resumable_streams import ResumableStreams
from assistant.streams.stream_folder import StreamFolder
from assistant.tools.builtin.builtin_tools import ToolResources
from assistant.tools.mcp_client.servers import McpServers
from assistant.tools.runner import ToolRunner
from common.internal_tokens import RETRIEVAL_TOKEN
from common.program_client import ProgramAddress, ProgramClient
from common.trusted_clock import TrustedClock
from gateway.api.declare import HttpRoutes
from gateway.api.forwarding import SHORT_BODY_BYTES
from gateway.extension import Extend, Extension, ExtensionError, GatewayParts
from gateway.metrics.state_metrics import gauge_family
from gateway.routing.table import LiveRoutes
from gateway.settings import MIB, GatewaySettings

if TYPE_CHECKING:
    from fastapi import FastAPI


class McpServersCollector(Collector):
    def __init__(self, list_connected: Callable[[], Mapping[str, bool]]) -> None:
        self._list_connected = list_connected

    def collect(self) -> Iterator[Metric]:
        text = "1 while the gateway is connected to a declared MCP server, 0 while it is not."
        yield gauge_family("mcp_server_up", text, "server", self._list_connected())


class StoredResponsesCollector(Collector):
    def __init__(self, stored_totals: Callable[[], StoredTotals], failures: Callable[[], int]) -> None:
        self._stored_totals = stored_totals
        self._failures = failures

    def collect(self) -> Iterator[Metric]:
        totals = self._stored_totals()
        yield GaugeMetricFamily("roundhouse_gateway_stored_responses", "Responses that are stored.", totals.responses)
        yield GaugeMetricFamily(
            "roundhouse_gateway_stored_completions", "Chat completions that are stored.", totals.completions
        )
        yield GaugeMetricFamily(
            "roundhouse_gateway_stored_conversations", "Conversations that are stored.", totals.conversations
        )
        yield GaugeMetricFamily(
            "roundhouse_gateway_stored_bytes", "Bytes of the database of stored responses.", totals.bytes
        )
        yield CounterMetricFamily(
            "roundhouse_gateway_store_failures",
            "Jobs that failed in the database of stored responses, or were refused because too many waited.",
            self._failures(),
        )


class StreamsCollector(Collector):
    def __init__(self, stream_totals: Callable[[], StreamTotals]) -> None:
        self._stream_totals = stream_totals

    def collect(self) -> Iterator[Metric]:
        totals = self._stream_totals()
        counts = {"live": totals.live, "ended": totals.ended}
        yield gauge_family("streams", "Resumable streams that are kept; state is `live` or `ended`.", "state", counts)
        yield GaugeMetricFamily(
            "roundhouse_gateway_stream_readers", "Clients that read a resumable stream now.", totals.readers
        )
        yield GaugeMetricFamily(
            "roundhouse_gateway_stream_bytes", "Bytes of memory charged for resumable streams.", totals.bytes
        )
        for name, text, count in (
            ("reads", "GET requests that read a resumable stream.", totals.reads),
            ("evictions", "Ended streams removed before their TTL to make room.", totals.evicted),
            ("refusals", "Streams refused with `streams_full`.", totals.refused),
            ("recovered", "Streams of an earlier gateway process that were taken over at the start.", totals.recovered),
            ("files_lost", "Streams whose file could not be written.", totals.lost_files),
        ):
            yield CounterMetricFamily(f"roundhouse_gateway_stream_{name}", text, count)


RETRIEVAL_CONNECT_S = 2.0
"""Seconds that a connection to retrieval may take to come about."""


def open_assistant(settings: GatewaySettings, trusted_clock: TrustedClock, lock_wait_s: float) -> Extend:
    """Open the store, and return the function that adds the assistant to a gateway. Blocks. `lock_wait_s`: see
    `gateway.extension.open_extension`.

    Raises:
        ExtensionError: the store cannot be opened; the text says what to set.
    """
    try:
        store = open_store(settings, trusted_clock, lock_wait_s)
    except StoreError as error:
        raise ExtensionError(f"{error}. Set ROUNDHOUSE_STATE, or ROUNDHOUSE_RESPONSES_RETENTION_H=0") from None
    return partial(add_assistant, store=store, lock_wait_s=lock_wait_s)


def open_store(settings: GatewaySettings, trusted_clock: TrustedClock, lock_wait_s: float = 0.0) -> StateStore | None:
    """Open the store of responses, conversations and chat completions; None if the settings store none.

    Blocks while the database is opened. Starts the store's thread: close the store, or give it to `add_assistant`.

    Raises:
        StoreError: the state folder cannot be used, or another gateway holds it.
    """
    if not settings.responses_retention_s:
        return None
    max_bytes, retention_s = settings.responses_max_mib * MIB, settings.responses_retention_s
    return StateStore(
        settings.state,
        max_bytes=max_bytes,
        retention_s=retention_s,
        clock=trusted_clock.read_latest,
        expiry_clock=trusted_clock.read_earliest,
        lock_wait_s=lock_wait_s,
    )


def open_streams(
    settings: GatewaySettings,
    live: LiveRoutes,
    trusted_clock: TrustedClock,
    clock: Callable[[], float],
    lock_wait_s: float = 0.0,
) -> ResumableStreams:
    """Return the resumable streams, with those that an earlier gateway left in files of the state folder
    (`ResumableStreams.recover_streams`). `clock`: Unix time in seconds.

    Locks and reads that folder, which blocks, unless `stream_files` is off. Where another gateway holds it, nothing is
    recovered and streams stay in memory, which is logged and not raised; with `lock_wait_s` they are recovered once it
    has released the folder, or after so many seconds. Close the result when the gateway ends. Raises
    OSError if the folder of the files cannot be read.
    """
    ring_bytes = settings.stream_ring_bytes
    registry = StreamRegistry(
        ring_bytes=ring_bytes, max_bytes=settings.streams_max_mib * MIB, ttl_s=settings.stream_ttl_s
    )
    folder = StreamFolder(settings.state, ring_bytes) if settings.stream_files else None
    resumable_streams = ResumableStreams(registry, folder, live, clock, gc_s=settings.stream_gc_s)
    if lock_wait_s:
        resumable_streams.recover_later(trusted_clock.read_earliest, lock_wait_s)
    else:
        resumable_streams.recover_streams(trusted_clock.read_earliest())
    return resumable_streams


def add_assistant(gateway: GatewayParts, store: StateStore | None, lock_wait_s: float = 0.0) -> Extension:
    """Return what the assistant adds to a gateway. Blocks while streams are read (`open_streams`).

    `store`: closed when the gateway ends, but not if an error is raised here; None: nothing is stored.

    Raises:
        OSError: the folder of the streams' files cannot be read.
    """
    return Assistant(gateway, store, lock_wait_s).describe_extension()


class Assistant:
    """The parts of the assistant in one gateway."""

    def __init__(self, gateway: GatewayParts, store: StateStore | None, lock_wait_s: float = 0.0) -> None:
        """Register metrics, set callbacks of the gateway's parts, and open the resumable streams, which blocks on the
        disk and may raise OSError (`open_streams`).

        `store`: the extension closes it when the gateway ends; the caller closes it if this raises. None: no responses,
        conversations and completions are stored. `lock_wait_s`: seconds that an older process of this gateway may take
        to release the files of streams. They are then read later, without blocking here, and an error is logged; 0:
        they are read now.
        """
        settings, live, clock = gateway.settings, gateway.services.live, gateway.services.clock
        self._gateway = gateway
        self._store = store
        self._bounds = HistoryBounds(settings.max_body_bytes)
        self.responses = StoredResponses(store, live, self._bounds, clock)
        self.completions = StoredCompletions(store, live, clock)
        self.streams = open_streams(settings, live, gateway.trusted_clock, clock, lock_wait_s)
        self.documents = DocumentReader()
        self._retrieval = _open_retrieval_client(settings)
        self._retrieval_probe = None if self._retrieval is None else ProgramProbe(self._retrieval)
        self._retrieval_forward = RetrievalForward(self._retrieval, gateway.services.gate)
        self.document_search = DocumentSearch(self._retrieval)
        self._servers = McpServers(clock, gateway.services.ledger)
        resources = ToolResources(clock, self.document_search.search)
        self.tools = ToolRunner(resources, self._servers, gateway.services.metrics.count_tool_call)
        self.posted_calls = PostedCalls(self.tools)
        handlers = ToolHandlers(gateway.admin_requests, self.document_search, live, gateway.model_events)
        self.mcp_calls = McpToolCalls(handlers, gateway.services.gate)
        self._served_tools = (
            ServedTools(self.mcp_calls, version("roundhouse"), SHORT_BODY_BYTES) if settings.mcp else None
        )
        live.on_tools = self.tools.follow_table
        self.tools.log.on_change = gateway.link.request_report
        gateway.link.list_tool_calls = self.tools.log.list_latest
        self._show_metrics()

    def describe_extension(self) -> Extension:
        """Return the assistant's hooks, routes, tasks, and what ends it, as a value for `create_gateway`. Call once."""
        gateway, probe, served_tools = self._gateway, self._retrieval_probe, self._served_tools
        dispatcher = gateway.dispatcher
        loop_hooks = tool_loop_hooks(
            ToolLoops(dispatcher.open_inner, dispatcher.body_budget, self.tools, self.responses)
        )
        kept_files = kept_file_hooks(self.document_search, dispatcher.body_budget)
        files = file_hooks(self.documents)
        searches = file_search_hooks(self.document_search)
        kept_streams = stream_hooks(self.streams, self.responses)
        stored = response_hooks(self.responses)
        return Extension(
            hooks={
                "none": kept_files + files + kept_streams,
                "read": kept_files + files + stored + counted_tool_hooks(self.tools),
                "made": kept_files + files + stored + searches + kept_streams + loop_hooks,
                "message": kept_files + grounded_message_hooks(self.document_search) + files + kept_streams,
                "completion": kept_files
                + grounded_chat_hooks(self.document_search)
                + files
                + completion_hooks(self.completions)
                + kept_streams,
            },
            find_websocket=ResponseSessions(
                dispatcher,
                gateway.authenticator,
                gateway.services.gate,
                lambda turn: kept_files + files + response_hooks(self.responses, turn) + searches + loop_hooks,
                self._bounds,
            ).find_websocket,
            declare=self._declare,
            larger_bodies=retrieval.upload_limits(gateway.settings.retrieval_max_file_mib * MIB),
            entered=() if self._retrieval is None else (self._retrieval,),
            loops=(
                self.streams.remove_expired,
                self._servers.run,
                *(() if probe is None else (probe.run,)),
                *(() if served_tools is None else (served_tools.run,)),
            ),
            close=self._close,
            begin_stop=self._begin_stop,
            end_all=self._end_all,
            call_when_written=self.responses.call_when_written,
            find_retrieval=lambda: "off" if probe is None else probe.result,
            find_retrieval_notice=lambda: None if probe is None else probe.notice,
            has_thread=self._store is not None,
        )

    def _show_metrics(self) -> None:
        registry, store = self._gateway.services.metrics.registry, self._store
        if store is not None:
            registry.register(StoredResponsesCollector(lambda: store.totals, lambda: store.failures))
        registry.register(StreamsCollector(lambda: self.streams.totals))
        registry.register(
            McpServersCollector(lambda: {each.name: each.state == "connected" for each in self._servers.list_status()})
        )

    def _declare(self, app: FastAPI) -> None:
        settings, live, gate = self._gateway.settings, self._gateway.services.live, self._gateway.services.gate
        budget = self._gateway.dispatcher.body_budget
        routes = HttpRoutes(app, settings.max_body_bytes, budget)
        declare_responses(routes, self.responses, self.streams, heartbeat_s=settings.heartbeat_s)
        streams.declare(routes, self.streams)
        declare_completions(routes, self.completions)
        kept = Conversations(self._store, self.responses, live, self._bounds)
        conversations.declare(routes, kept)
        retrieval.declare(routes, self._retrieval_forward)
        declare_tools(routes, self.tools, self.posted_calls)
        declare_servers(routes, self.tools, self._servers, self.posted_calls, gate)
        if self._served_tools is not None:
            declare_mcp(routes, self._served_tools)

    def _begin_stop(self) -> None:
        self._retrieval_forward.begin_stop()
        self.mcp_calls.begin_stop()

    def _end_all(self) -> None:
        self.streams.stop_readers()
        self._retrieval_forward.end_all()
        self.posted_calls.end_all()
        self.mcp_calls.end_all()

    async def _close(self) -> None:
        if self._store is not None:
            await self._store.close()
        self.streams.close()


def _open_retrieval_client(settings: GatewaySettings) -> ProgramClient | None:
    if not settings.retrieval:
        return None
    address = ProgramAddress.parse(settings.retrieval_url, settings.retrieval_token_path, RETRIEVAL_TOKEN.header)
    return ProgramClient(address, RETRIEVAL_CONNECT_S, program="retrieval")
