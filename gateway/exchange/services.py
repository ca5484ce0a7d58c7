"""What all exchanges of a gateway share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.admission.admission import Admission
from gateway.admission.answer_pace import AnswerPaces
from gateway.control.inflight import InflightCounts
from gateway.control.remote_prober import RemoteProber
from gateway.documents.reader import DocumentReader
from gateway.exchange.document_search import DocumentSearch
from gateway.exchange.grant_dispatcher import GrantDispatcher
from gateway.exchange.progress_board import ProgressBoard
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.response_headers import ResponseHeaders
from gateway.metrics.registry import Metrics
from gateway.protocols.common.fan_out import Bounds
from gateway.routing.live_routes import LiveRoutes
from gateway.settings import GatewaySettings
from gateway.storage.completions.registry import StoredCompletions
from gateway.storage.responses.registry import StoredResponses
from gateway.streams.resumable_streams import ResumableStreams
from gateway.tenancy.rate_limits import RateLimits
from gateway.tools.runner import ToolRunner
from gateway.upstream.client import EngineClient

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the gateway that all exchanges share, so that an exchange finds each of them in one place.

    Made once, by `create_gateway`, for the life of the gateway.
    """

    settings: GatewaySettings
    live: LiveRoutes
    ledger: InflightCounts
    admission: Admission
    gate: AdminGate
    limits: RateLimits
    engines: EngineClient
    remotes: RemoteProber
    metrics: Metrics
    lines: ResponseHeaders
    responses: StoredResponses
    completions: StoredCompletions
    streams: ResumableStreams
    now: Callable[[], float]
    """Returns monotonic seconds."""
    clock: Callable[[], float]
    """Returns Unix time in seconds."""
    paces: AnswerPaces = field(default_factory=AnswerPaces)
    progress: ProgressBoard = field(default_factory=ProgressBoard)
    turns: GrantDispatcher = field(default_factory=GrantDispatcher)
    documents: DocumentReader = field(default_factory=DocumentReader)
    document_search: DocumentSearch = field(default_factory=lambda: DocumentSearch(None))
    tools: ToolRunner | None = None
    """The tools that responses may have run; None: there are none."""
    bounds: Bounds = field(init=False)
    """What one request may ask for, from the settings."""
    exchanges: set[Exchange] = field(default_factory=set)
    """All exchanges from the time their caller is known to their end."""

    def __post_init__(self) -> None:
        """Set `bounds`."""
        settings = self.settings
        bounds = Bounds(settings.max_inputs, settings.max_choices, settings.max_images)
        object.__setattr__(self, "bounds", bounds)
