"""Assemble the gateway from its settings. There is no module state, so one process may hold several gateways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version

from fastapi import FastAPI

from common.gateway_token import read_token
from common.internal_tokens import RETRIEVAL_TOKEN
from common.listening import ListenError, resolve_host
from common.program_address import ProgramAddress
from common.program_client import ProgramClient
from common.trusted_clock import TrustedClock
from gateway.admission.admission import Admission
from gateway.api import (
    INFERENCE_GROUPS,
    admin,
    aicore,
    benchmarks,
    clock,
    conversations,
    document,
    errors,
    gateway_limits,
    health,
    mcp,
    models,
    page,
    retrieval,
    router,
    stored_completions,
    stored_responses,
    streams,
    tool_servers,
    tools,
    warm_up,
)
from gateway.api.benchmarks import Benchmarks
from gateway.api.declare import TAGS
from gateway.api.direct_routes import DirectRoutes
from gateway.api.gateway_limits import Limits
from gateway.api.retrieval import RetrievalForward
from gateway.api.tools import PostedCalls
from gateway.control.admin_requests import AdminRequests
from gateway.control.aicore_probe import AicoreProbe
from gateway.control.download_feed import DownloadFeed
from gateway.control.inflight import InflightCounts
from gateway.control.link import ControllerLink, LinkState
from gateway.control.process_identity import take_identity
from gateway.control.program_probe import ProgramProbe
from gateway.control.remote_prober import RemoteProber
from gateway.control.router_changes import RouterChanges
from gateway.discovery.advert import Advert, choose_advert
from gateway.discovery.advertiser import MdnsAdvertiser, is_in_container, list_local_ips
from gateway.exchange.dispatcher import InferenceDispatcher
from gateway.exchange.document_search import DocumentSearch
from gateway.exchange.inner_requests import InnerRequests
from gateway.exchange.services import Services
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.authenticator import Authenticator
from gateway.ingress.cors import Cors
from gateway.ingress.host_check import HostCheck
from gateway.ingress.internal_callers import InternalCallers
from gateway.ingress.middleware import IngressMiddleware, request_id_source
from gateway.ingress.response_headers import ResponseHeaders
from gateway.ingress.route_access import RouteAccess
from gateway.mcp_server.calls import McpToolCalls
from gateway.mcp_server.handlers import ToolHandlers
from gateway.mcp_server.served_tools import ServedTools
from gateway.metrics.engine_scraper import EngineScraper
from gateway.metrics.registry import Metrics
from gateway.page.page_files import BUILT_FOLDER, PageFiles
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.model_events import ModelEventLog
from gateway.server.tls_certificate import TlsCertificate
from gateway.settings import MIB, GatewaySettings
from gateway.storage.benchmark_results import BenchmarkResults
from gateway.storage.completions.registry import StoredCompletions
from gateway.storage.conversations.registry import Conversations
from gateway.storage.responses.records import HistoryBounds
from gateway.storage.responses.registry import StoredResponses
from gateway.storage.store import StateStore
from gateway.streams.registry import StreamRegistry
from gateway.streams.resumable_streams import ResumableStreams
from gateway.streams.stream_folder import StreamFolder
from gateway.tenancy.clients import ClientDirectory, ClientLimits
from gateway.tenancy.rate_limits import RateLimits
from gateway.tools.builtin.registry import ToolResources
from gateway.tools.mcp_client.servers import McpServers
from gateway.tools.runner import ToolRunner
from gateway.upstream.client import EngineClient

logger = logging.getLogger(__name__)

DESCRIPTION = """Declared language models behind one OpenAI-compatible address.

Every answer has an `X-Request-Id`. Every error has one envelope, whose `error.code` says what went wrong and whose
`error.next_steps` say what to do. `Retry-After` comes with codes that may succeed later, `x-should-retry: false` with
those that will not. Where keys are declared, a request carries one: `Authorization: Bearer SECRET`, or `x-api-key`."""

CONTROLLER_CONNECT_S = 2.0
"""Seconds that a connection to the controller may take to come about."""
CLOCK_NAME = "clock-gateway.json"
"""The record of `TrustedClock` in the state folder, which other programs may share."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """An assembled gateway, made by `create_gateway`. A server passes requests to `direct`, and those that it does not
    serve to `app`.

    The lifespan of `app` opens and closes what both use, so a server must run it (ASGI `lifespan`).
    """

    app: IngressMiddleware
    """ASGI application for all routes that FastAPI serves."""
    direct: DirectRoutes
    """Serves the requests that bypass FastAPI: inference and health checks."""
    inference: InferenceDispatcher
    """Serves inference requests."""
    forward: admin.AdminForward
    """Forwards admin requests to the controller."""
    link: ControllerLink
    """The link to the controller."""
    retrieval: RetrievalForward
    """Forwards requests about documents to retrieval."""
    streams: ResumableStreams
    """The streams that clients can read again."""
    health: health.HealthSources
    """What `/health` tells."""
    model_events: ModelEventLog
    """What clients of llama-server's router follow."""
    tool_runner: ToolRunner
    """Calls tools."""
    posted_calls: PostedCalls
    """The calls of tools that clients sent."""
    mcp_calls: McpToolCalls
    """The calls of MCP clients."""

    def begin_stop(self) -> None:
        """End answers of admin routes and of retrieval that have no known length, among them all event streams.

        Inference requests and calls of tools go on until `end_all`; but an MCP call that waits for a load or an unload
        answers the state as it is.

        `/health/ready` answers 503 from now on. Call when the server begins to stop.
        """
        self.health.is_stopping = True
        self.link.begin_drain()
        self.forward.begin_stop()
        self.retrieval.begin_stop()
        self.model_events.close()
        self.mcp_calls.begin_stop()

    @property
    def is_busy(self) -> bool:
        """Whether inference requests are running or waiting, including those that have no connection any more."""
        return self.inference.is_busy

    def end_all(self) -> None:
        """End all running requests with `gateway_stopping`, and refuse new inference requests with it.

        Call in the event loop when the grace period of a stop is over.
        """
        self.inference.end_all()
        self.streams.stop_readers()
        self.forward.end_all()
        self.retrieval.end_all()
        self.posted_calls.end_all()
        self.mcp_calls.end_all()


def open_clock(settings: GatewaySettings) -> TrustedClock:
    """Return the clock by which the gateway expires what it stores, with its record in the state folder. Blocks; raises
    nothing."""
    return TrustedClock(settings.state / CLOCK_NAME)


def open_store(settings: GatewaySettings, trusted_clock: TrustedClock) -> StateStore | None:
    """Open the store of responses, conversations and chat completions; None if the settings store none.

    Blocks while the database is opened. Starts the store's thread: close the store, or give it to `create_gateway`.

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
    )


def open_streams(settings: GatewaySettings, live: LiveRoutes, trusted_clock: TrustedClock) -> ResumableStreams:
    """Return the resumable streams, with those that an earlier gateway left in files of the state folder
    (`ResumableStreams.recover_streams`).

    Reads these files, which blocks, unless `stream_files` is off. Close the result when the gateway ends. Raises
    OSError if the folder of the files cannot be read.
    """
    ring_bytes = settings.stream_ring_bytes
    registry = StreamRegistry(
        ring_bytes=ring_bytes, max_bytes=settings.streams_max_mib * MIB, ttl_s=settings.stream_ttl_s
    )
    folder = StreamFolder(settings.state, ring_bytes) if settings.stream_files else None
    resumable_streams = ResumableStreams(registry, folder, live, time.time, gc_s=settings.stream_gc_s)
    resumable_streams.recover_streams(trusted_clock.read_earliest())
    return resumable_streams


def open_certificate(settings: GatewaySettings) -> TlsCertificate | None:
    """Load the HTTPS certificate of the settings; None if they name none, so that HTTP is served. Blocks.

    Raises:
        CertificateError: the certificate or its key cannot be used.
    """
    return None if settings.tls_cert is None else TlsCertificate(settings.tls_cert, settings.tls_key)


class AdminHostError(Exception):
    """The setting `admin_host` has an entry that is no usable address. The text says which and why."""


def find_admin_addresses(settings: GatewaySettings) -> frozenset[str] | None:
    """Resolve `admin_host` to the local IP addresses at which admin requests are accepted; None: at any. Blocks while
    names are looked up.

    Raises:
        AdminHostError: a name has no address, or an address is a wildcard (0.0.0.0, ::).
    """
    if not settings.admin_host:
        return None
    try:
        addresses = [address for host in settings.admin_host for address in resolve_host(host)]
    except ListenError as error:
        raise AdminHostError(f"{error.host}: {error}") from None
    for address in addresses:
        if address.is_wildcard:
            raise AdminHostError(f"{address.host}: no connection has this address; unset it to mean every address")
    return frozenset(address.ip for address in addresses)


def create_gateway(
    settings: GatewaySettings,
    store: StateStore | None,
    certificate: TlsCertificate | None = None,
    trusted_clock: TrustedClock | None = None,
) -> Gateway:
    """Assemble a gateway with these settings.

    Connects to nothing and serves nothing before its lifespan begins, but reads the streams in the state folder
    (`open_streams`) and resolves names (`find_admin_addresses`), which both block.

    `store` None: responses are not stored. `certificate` None: it serves HTTP. The gateway closes `store` when its
    lifespan ends, but not if an error is raised here. It loads `certificate` again when its files change.
    `trusted_clock`: the one of `store`; None: one is opened, for a gateway without a store.

    Raises:
        AdminHostError: `admin_host` has an entry that is no usable address; see `find_admin_addresses`.
        OSError: the folder of the streams' files cannot be read.
    """
    live, link_state, metrics, limits = LiveRoutes(), LinkState(), Metrics(), RateLimits()
    admission = Admission(settings.queue_limit)
    if trusted_clock is None:
        trusted_clock = open_clock(settings)

    def longest_wait_s(model: str) -> float:
        wait_starts = (ticket.owner.waits_since for ticket in admission.waiting_tickets(model))
        return time.monotonic() - min((each for each in wait_starts if each is not None), default=time.monotonic())

    ledger = InflightCounts(time.time, admission.depths, longest_wait_s)
    engines = EngineClient(settings.connect_timeout_s)
    metrics.show_state(live, ledger, link_state, time.monotonic)
    metrics.show_connections(count_idle=lambda: engines.idle_connections, count_busy=lambda: engines.busy_connections)
    if store is not None:
        metrics.show_stored(lambda: store.totals, lambda: store.failures)
    if certificate is not None:
        metrics.show_certificate(lambda: certificate.problem is not None)
    cors = Cors(settings.cors_origins)
    lines, next_id = ResponseHeaders(cors), request_id_source()
    hosts = HostCheck(settings.hosts, settings.allowed_hosts, is_open=settings.open)
    clients = ClientDirectory(
        ClientLimits(
            settings.client_requests_per_minute, settings.client_tokens_per_minute, settings.client_concurrency
        )
    )
    token_path = settings.retrieval_token_path
    authenticator = Authenticator(
        live,
        hosts,
        cors,
        clients,
        time.time,
        serves_everybody=settings.serves_everybody,
        internal=InternalCallers(lambda: read_token(token_path), settings.retrieval_concurrency)
        if settings.retrieval
        else None,
        read_metrics_key=settings.read_metrics_key if settings.has_metrics_key else None,
    )
    gate = AdminGate(find_admin_addresses(settings), is_open=settings.opens_admin)
    bounds = HistoryBounds(settings.max_body_bytes)
    responses = StoredResponses(store, live, bounds, time.time)
    completions = StoredCompletions(store, live, time.time)
    resumable_streams = open_streams(settings, live, trusted_clock)
    metrics.show_streams(lambda: resumable_streams.totals)
    remotes = RemoteProber(time.time)
    retrieval_client = _open_retrieval_client(settings)
    document_search = DocumentSearch(retrieval_client)
    mcp_servers = McpServers(time.time, ledger)
    metrics.show_mcp_servers(lambda: {each.name: each.state == "connected" for each in mcp_servers.list_status()})
    tool_resources = ToolResources(time.time, document_search.search)
    tool_runner = ToolRunner(tool_resources, mcp_servers, metrics.count_tool_call)
    live.on_tools = tool_runner.follow_table
    services = Services(
        settings,
        live,
        ledger,
        admission,
        gate,
        limits,
        engines,
        remotes,
        metrics,
        lines,
        responses,
        completions,
        resumable_streams,
        time.monotonic,
        time.time,
        document_search=document_search,
        tools=tool_runner,
    )
    apis = [api for group in INFERENCE_GROUPS for api in group.APIS]
    inference = InferenceDispatcher(apis, services, authenticator, next_id)

    address = ProgramAddress.parse(settings.controller_url, settings.gateway_token_file)
    link = ControllerLink(
        address,
        lambda: take_identity(settings.state),
        addresses=settings.urls,
        live=live,
        ledger=ledger,
        remotes=remotes,
        tool_log=tool_runner.log,
        state=link_state,
        now=time.monotonic,
        jitter=random.random,
    )
    controller = ProgramClient(address, CONTROLLER_CONNECT_S)
    forward = admin.AdminForward(controller)
    retrieval_forward = RetrievalForward(retrieval_client, gate)
    clients_of_programs = (controller,) if retrieval_client is None else (controller, retrieval_client)
    retrieval_probe = None if retrieval_client is None else ProgramProbe(retrieval_client)
    aicore_probe = AicoreProbe(live)
    model_events = ModelEventLog(secrets.token_hex(4))
    live.on_models = model_events.follow_table
    download_feed = DownloadFeed(controller, model_events.follow_downloads)
    admin_requests = AdminRequests(controller)
    mcp_calls = McpToolCalls(ToolHandlers(admin_requests, document_search, live, model_events), gate)
    served_tools = ServedTools(mcp_calls, version("roundhouse"), mcp.MAX_BODY_BYTES) if settings.mcp else None
    loops = [link.run, download_feed.run, inference.run_timers, resumable_streams.remove_expired, aicore_probe.run]
    loops += [mcp_servers.run, trusted_clock.run]
    loops += [] if certificate is None else [certificate.follow_files]
    loops += [] if retrieval_probe is None else [retrieval_probe.run]
    loops += [] if served_tools is None else [served_tools.run]
    loops += [] if settings.is_local or not settings.mdns else [_new_advertiser(settings).run]
    engine_scraper = EngineScraper(live, time.monotonic)
    entered = (*clients_of_programs, remotes, aicore_probe, engine_scraper)
    app = _new_framework_app(link, engines, entered, store, resumable_streams, loops)
    for group in INFERENCE_GROUPS:
        group.declare(app)
    inner_requests = InnerRequests(inference, time.monotonic)
    benchmark_runs = Benchmarks(inner_requests, BenchmarkResults(settings.state))
    warm_up.declare(app, live, inner_requests, aicore_probe, default_model=settings.default_model, now=time.monotonic)
    aicore.declare(app, live, aicore_probe, benchmark_runs)
    benchmarks.declare(app, live, benchmark_runs)
    models.declare(app, live, model_events)
    router_changes = RouterChanges(admin_requests, live, model_events)
    router.declare(app, live, model_events, router_changes, gate, heartbeat_s=settings.heartbeat_s)
    stored_responses.declare(app, responses, resumable_streams, heartbeat_s=settings.heartbeat_s)
    streams.declare(app, resumable_streams, settings.max_body_bytes)
    stored_completions.declare(app, completions, settings.max_body_bytes)
    conversations.declare(app, Conversations(store, responses, live, bounds), settings.max_body_bytes)
    retrieval.declare(app, retrieval_forward)
    posted_calls = PostedCalls(tool_runner)
    tools.declare(app, tool_runner, posted_calls, settings.max_body_bytes)
    tool_servers.declare(app, tool_runner, mcp_servers, posted_calls, gate, settings.max_body_bytes)
    if served_tools is not None:
        mcp.declare(app, served_tools)
    health_sources = health.HealthSources(
        app.version,
        live,
        ledger,
        link_state,
        admission,
        lambda: "off" if retrieval_probe is None else retrieval_probe.result,
        lambda: certificate is not None and certificate.problem is not None,
        aicore_probe,
        trusted_clock.describe_hold,
        lambda: None if retrieval_probe is None else retrieval_probe.notice,
    )
    metrics.show_localllm_names(ledger, health_sources.list_engines)
    gateway_limits.declare(app, Limits.of(settings))
    clock.declare(app, trusted_clock)
    health.declare(app, sources=health_sources, metrics=metrics, engines=engine_scraper)
    admin.declare(app, forward)
    page.declare(app, PageFiles(settings.page_folder or BUILT_FOLDER) if settings.page else None)
    document.declare(app, controller)
    ingress = IngressMiddleware(
        app,
        authenticator,
        gate,
        limits,
        cors,
        access=RouteAccess(app.routes),
        max_body_bytes=settings.max_body_bytes,
        larger_bodies=_upload_limits(settings),
        next_id=next_id,
        now=time.monotonic,
    )
    direct = DirectRoutes(inference, health_sources, cors, authenticator)
    return Gateway(
        ingress,
        direct,
        inference,
        forward,
        link,
        retrieval_forward,
        resumable_streams,
        health_sources,
        model_events,
        tool_runner,
        posted_calls,
        mcp_calls,
    )


def _new_advertiser(settings: GatewaySettings) -> MdnsAdvertiser:
    """Return the mDNS advertiser of a gateway that listens beyond loopback. Names are resolved at each choice."""

    def choose() -> Advert | None:
        try:
            bound_ips = [address.ip for host in settings.hosts for address in resolve_host(host)]
        except ListenError as error:
            raise OSError(f"{error.host}: {error}") from None
        return choose_advert(
            bound_ips,
            list_local_ips(),
            settings.port,
            advertised=settings.advertise_address,
            is_in_container=is_in_container(),
        )

    return MdnsAdvertiser(choose)


def _open_retrieval_client(settings: GatewaySettings) -> ProgramClient | None:
    if not settings.retrieval:
        return None
    address = ProgramAddress.parse(settings.retrieval_url, settings.retrieval_token_path, RETRIEVAL_TOKEN.header)
    return ProgramClient(address, CONTROLLER_CONNECT_S, program="retrieval")


def _upload_limits(settings: GatewaySettings) -> dict[str, int]:
    # JSON may take six bytes for one of the text; retrieval itself counts the text.
    most = settings.retrieval_max_file_mib * MIB * retrieval.ESCAPED_BYTES + retrieval.FORM_BYTES
    return dict.fromkeys(retrieval.UPLOAD_PATHS, most)


def _log_failed_loop(task: asyncio.Task[None]) -> None:
    # A loop runs as long as the gateway. One that fails is missed by nobody else: its work simply stops.
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("a loop of the gateway failed, and its work stops until a restart", exc_info=error)


def _new_framework_app(
    link: ControllerLink,
    engines: EngineClient,
    entered: Sequence[AbstractAsyncContextManager[object]],
    store: StateStore | None,
    resumable_streams: ResumableStreams,
    loops: Sequence[Callable[[], Coroutine[None, None, None]]],
) -> FastAPI:
    """Return the application. Its lifespan enters the contexts of `entered` in order, runs `loops` as tasks, and closes
    what the other arguments hold open."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for part in entered:
                await stack.enter_async_context(part)
            tasks = [asyncio.create_task(run()) for run in loops]
            for task in tasks:
                task.add_done_callback(_log_failed_loop)
            yield
        await engines.close()
        if store is not None:
            await store.close()
        resumable_streams.close()
        await link.say_goodbye()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="Roundhouse",
        version=version("roundhouse"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        openapi_url=None,  # document.py serves it, with the controller's part
        docs_url=None,  # its page loads scripts from a public address
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    errors.declare(app)
    return app
