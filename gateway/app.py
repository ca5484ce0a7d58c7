"""Assemble the gateway from its settings. There is no module state, so one process may hold several gateways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI

from common.listening import ListenError, resolve_host
from common.program_client import ProgramAddress, ProgramClient
from common.program_logs import open_access_log
from common.shared_token import read_token
from common.trusted_clock import TrustedClock
from gateway.admission.admission import Admission
from gateway.api import document, page
from gateway.api.declare import TAGS, HttpRoutes, declare_errors
from gateway.api.direct_routes import list_health_openers
from gateway.api.forwarding import AdminForward, declare_admin
from gateway.api.inference import INFERENCE_ROUTES, declare_inference
from gateway.api.models import declare_models, declare_router
from gateway.api.operations import (
    HealthSources,
    Limits,
    declare_clock,
    declare_health,
    declare_history,
    declare_limits,
)
from gateway.api.readiness import BenchmarkResults, Benchmarks, declare_aicore, declare_benchmarks, declare_warm_up
from gateway.control.admin_requests import AdminRequests, DownloadFeed, RouterChanges
from gateway.control.inflight import InflightCounts
from gateway.control.link import ControllerLink, LinkState, OwnIdentity, take_identity
from gateway.control.remote_prober import AicoreProbe, RemoteProber
from gateway.discovery.advert import Advert, choose_advert
from gateway.discovery.advertiser import MdnsAdvertiser, is_in_container, list_local_ips
from gateway.exchange.client_response import ResponseHeaders
from gateway.exchange.dispatcher import InferenceDispatcher
from gateway.exchange.inner_requests import InnerRequests
from gateway.exchange.services import Services
from gateway.extension import Extend, Extension, GatewayParts, add_nothing
from gateway.ingress.access_rules import AdminGate, Cors, HostCheck
from gateway.ingress.authenticator import Authenticator, InternalCallers
from gateway.ingress.middleware import IngressChecks, IngressMiddleware, RouteAccess, request_id_source
from gateway.metrics.engine_scraper import EngineScraper
from gateway.metrics.history import MetricsHistory
from gateway.metrics.request_metrics import Metrics
from gateway.metrics.state_metrics import CertificateCollector, ConnectionCollector, LocalllmCollector, StateCollector
from gateway.page.page_files import BUILT_FOLDER, PageFiles
from gateway.routing.model_events import ModelEventLog
from gateway.routing.table import LiveRoutes
from gateway.server.tls_certificate import TlsCertificate
from gateway.settings import GatewaySettings
from gateway.tenancy.api_keys import ClientDirectory, ClientLimits
from gateway.tenancy.rate_limits import RateLimits
from gateway.upstream.client import EngineClient

logger = logging.getLogger(__name__)

DESCRIPTION = """Declared language models behind one OpenAI-compatible address.

Every answer has an `X-Request-Id`. Every error has one envelope, whose `error.code` says what went wrong and whose
`error.next_steps` say what to do. `Retry-After` comes with codes that may succeed later, `x-should-retry: false` with
those that will not. Where keys are declared, a request carries one: `Authorization: Bearer SECRET`, or `x-api-key`."""

CONTROLLER_CONNECT_S = 2.0
"""Seconds that a connection to the controller may take to come about."""
WITHDRAWN_S = 2.0
"""Seconds, beyond its grace period, after which a gateway that was told to end is advertised no more."""
CLOCK_NAME = "clock-gateway.json"
"""The record of `TrustedClock` in the state folder, which other programs may share."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """An assembled gateway, made by `create_gateway`. A server passes requests to `inference`, and those that it does
    not serve to `app`.

    The lifespan of `app` opens and closes what both use, so a server must run it (ASGI `lifespan`).
    """

    app: IngressMiddleware
    """ASGI application for all routes that FastAPI serves."""
    inference: InferenceDispatcher
    """Serves the requests that bypass FastAPI: inference and health checks."""
    forward: AdminForward
    """Forwards admin requests to the controller."""
    link: ControllerLink
    """The link to the controller."""
    health: HealthSources
    """What `/health` tells."""
    model_events: ModelEventLog
    """What clients of llama-server's router follow."""
    extension: Extension
    """What another package added."""

    def begin_stop(self) -> None:
        """End answers of admin routes and of retrieval that have no known length, among them all event streams.

        Inference requests and calls of tools go on until `end_all`; but an MCP call that waits for a load or an unload
        answers the state as it is.

        `/health/ready` answers 503 from now on. Call when the server begins to stop.
        """
        self.health.is_stopping = True
        self.link.begin_drain()
        self.forward.begin_stop()
        self.model_events.close()
        self.extension.begin_stop()

    @property
    def is_busy(self) -> bool:
        """Whether inference requests are running or waiting, including those that have no connection any more."""
        return self.inference.is_busy

    def end_all(self) -> None:
        """End all running requests with `gateway_stopping`, and refuse new inference requests with it.

        Call in the event loop when the grace period of a stop is over.
        """
        self.inference.end_all()
        self.forward.end_all()
        self.extension.end_all()


def open_clock(settings: GatewaySettings) -> TrustedClock:
    """Return the clock by which the gateway expires what it stores, with its record in the state folder. Blocks; raises
    nothing."""
    return TrustedClock(settings.state / CLOCK_NAME)


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
    extend: Extend = add_nothing,
    certificate: TlsCertificate | None = None,
    trusted_clock: TrustedClock | None = None,
    *,
    takes_over: bool = False,
) -> Gateway:
    """Assemble a gateway with these settings.

    Connects to nothing and serves nothing before its lifespan begins, but resolves names (`find_admin_addresses`) and
    calls `extend`: both block.

    `extend`: adds another package's features, see `open_extension`. `certificate` None: it serves HTTP. The gateway
    loads `certificate` again when its files change. `trusted_clock`: the one that `extend` was opened with; None: one
    is opened. `takes_over`: see `OwnIdentity`.

    Raises:
        AdminHostError: `admin_host` has an entry that is no usable address; see `find_admin_addresses`.
        OSError: `extend` cannot read its files.
    """
    live, link_state, metrics, limits = LiveRoutes(), LinkState(), Metrics(), RateLimits()
    admission = Admission(settings.queue_limit)
    if trusted_clock is None:
        trusted_clock = open_clock(settings)

    def longest_wait_s(model: str) -> float:
        wait_starts = (ticket.owner.waits_since for ticket in admission.waiting_tickets(model))
        return time.monotonic() - min((each for each in wait_starts if each is not None), default=time.monotonic())

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
        lambda headers: hosts.check_request(headers, cors),
        clients,
        time.time,
        serves_everybody=settings.serves_everybody,
        internal=InternalCallers(lambda: read_token(token_path), settings.retrieval_concurrency)
        if settings.retrieval
        else None,
        read_metrics_key=settings.read_metrics_key if settings.has_metrics_key else None,
    )
    ledger = InflightCounts(time.time, admission.depths, longest_wait_s, authenticator.keys_used)
    engines = EngineClient(settings.connect_timeout_s)
    metrics.registry.register(StateCollector(live, ledger, link_state, time.monotonic))
    metrics.registry.register(ConnectionCollector(lambda: engines.idle_connections, lambda: engines.busy_connections))
    if certificate is not None:
        metrics.registry.register(CertificateCollector(lambda: certificate.problem is not None))
    gate = AdminGate(find_admin_addresses(settings), is_open=settings.opens_admin)
    remotes = RemoteProber(time.time)
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
        time.monotonic,
        time.time,
    )
    inference = InferenceDispatcher([route.api for route in INFERENCE_ROUTES], services, authenticator, next_id)

    address = ProgramAddress.parse(settings.controller_url, settings.gateway_token_file)
    link = ControllerLink(
        address,
        OwnIdentity(lambda: take_identity(settings.state), settings.urls, takes_over),
        live=live,
        ledger=ledger,
        remotes=remotes,
        state=link_state,
        now=time.monotonic,
    )
    controller = ProgramClient(address, CONTROLLER_CONNECT_S)
    forward = AdminForward(controller)
    aicore_probe = AicoreProbe(live)
    model_events = ModelEventLog(secrets.token_hex(4))
    live.on_models = model_events.follow_table
    download_feed = DownloadFeed(controller, model_events.follow_downloads)
    admin_requests = AdminRequests(controller)
    extension = extend(
        GatewayParts(settings, services, inference, authenticator, link, admin_requests, model_events, trusted_clock)
    )
    services.call_when_written = extension.call_when_written
    if settings.access_log_mib:
        inference.keep_access_log(open_access_log(settings.state, settings.access_log_mib))
    inference.add_features(extension.hooks, extension.find_websocket)
    history = MetricsHistory(live, ledger.queued, metrics.requests, time.monotonic)
    loops = [download_feed.run, inference.run_timers, aicore_probe.run, trusted_clock.run, history.run]
    loops += extension.loops
    loops += [] if certificate is None else [certificate.follow_files]
    if settings.mdns and not settings.is_local:
        # Not beside the process before this one, or the name would be taken.
        after_s = settings.shutdown_grace_s + WITHDRAWN_S if takes_over else 0.0
        loops.append(partial(_new_advertiser(settings).run, after_s))
    engine_scraper = EngineScraper(live, time.monotonic)
    entered = (controller, *extension.entered, remotes, aicore_probe, engine_scraper)
    app = _new_framework_app(link, engines, entered, extension.close, loops, settings.path_prefix)
    for route in INFERENCE_ROUTES:
        declare_inference(app, route)
    routes = HttpRoutes(app, settings.max_body_bytes, inference.body_budget)
    inner_requests = InnerRequests(inference.open_inner, time.monotonic)
    benchmark_runs = Benchmarks(inner_requests, BenchmarkResults(settings.state))
    declare_warm_up(
        routes, live, inner_requests, aicore_probe, default_model=settings.default_model, now=time.monotonic
    )
    declare_aicore(routes, live, aicore_probe, benchmark_runs)
    declare_benchmarks(routes, live, benchmark_runs)
    declare_models(routes, live, model_events, default_model=settings.default_model)
    router_changes = RouterChanges(admin_requests, live, model_events)
    declare_router(routes, live, model_events, router_changes, gate, heartbeat_s=settings.heartbeat_s)
    extension.declare(app)
    health_sources = HealthSources(
        app.version,
        live,
        ledger,
        link_state,
        admission,
        extension.find_retrieval,
        lambda: certificate is not None and certificate.problem is not None,
        aicore_probe,
        trusted_clock.describe_hold,
        extension.find_retrieval_notice,
        authenticator.find_viewer,
    )
    metrics.registry.register(LocalllmCollector(metrics.requests, ledger, health_sources.list_engines))
    declare_limits(routes, Limits.of(settings))
    declare_clock(routes, trusted_clock)
    declare_history(routes, history)
    declare_health(routes, sources=health_sources, metrics=metrics, engines=engine_scraper)
    declare_admin(app, forward)
    page.declare(app, PageFiles(settings.page_folder or BUILT_FOLDER) if settings.page else None, settings.path_prefix)
    document.declare(app, controller)
    ingress = IngressMiddleware(
        app,
        IngressChecks(authenticator, gate, limits, cors),
        RouteAccess(app.routes),
        max_body_bytes=lambda path: extension.larger_bodies.get(path, settings.max_body_bytes),
        next_id=next_id,
        now=time.monotonic,
    )
    inference.add_openers(list_health_openers(health_sources, cors, authenticator, next_id))
    return Gateway(ingress, inference, forward, link, health_sources, model_events, extension)


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


def _log_failed_loop(task: asyncio.Task[None]) -> None:
    # A loop runs as long as the gateway. One that fails is missed by nobody else: its work simply stops.
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("a loop of the gateway failed, and its work stops until a restart", exc_info=error)


def _new_framework_app(
    link: ControllerLink,
    engines: EngineClient,
    entered: Sequence[AbstractAsyncContextManager[object]],
    close_extension: Callable[[], Awaitable[None]],
    loops: Sequence[Callable[[], Coroutine[None, None, None]]],
    path_prefix: str,
) -> FastAPI:
    """Return the application. Its lifespan enters the contexts of `entered` in order, runs the link and `loops` as
    tasks, and at its end cancels the loops before it closes what they use. `path_prefix`: as the setting."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for part in entered:
                await stack.enter_async_context(part)
            link_task, *tasks = [asyncio.create_task(run()) for run in (link.run, *loops)]
            for task in (link_task, *tasks):
                task.add_done_callback(_log_failed_loop)
            yield
            for task in tasks:
                task.cancel()  # and wait for none yet: the controller should hear of the end soon
            await engines.close()
            await close_extension()
            await link.say_goodbye()
            link_task.cancel()
            await asyncio.gather(link_task, *tasks, return_exceptions=True)

    app = FastAPI(
        title="Roundhouse",
        version=version("roundhouse"),
        description=DESCRIPTION,
        servers=[{"url": path_prefix}] if path_prefix else None,
        openapi_tags=TAGS,
        openapi_url=None,  # document.py serves it, with the controller's part
        docs_url=None,  # its page loads scripts from a public address
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    declare_errors(app)
    return app
