"""What all exchanges of a gateway share."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from contract.routing import Endpoint
from gateway.admission.admission import Admission
from gateway.admission.answer_pace import AnswerPaces
from gateway.admission.ticket import Grant
from gateway.control.inflight import InflightCounts
from gateway.control.remote_prober import RemoteProber
from gateway.exchange.client_response import ResponseHeaders
from gateway.exchange.progress_hooks import ProgressBoard
from gateway.ingress.access_rules import AdminGate
from gateway.metrics.request_metrics import Metrics
from gateway.protocols.common.fan_out import Bounds
from gateway.routing.table import LiveRoutes
from gateway.settings import GatewaySettings
from gateway.tenancy.rate_limits import RateLimits
from gateway.upstream.client import EngineClient

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange

logger = logging.getLogger(__name__)


class GrantDispatcher:
    """Delivers the grants of `Admission` to the owners of their tickets. One object per gateway: `Services.grants`.

    Delivers in a loop: a request that fails at once passes its slot to the next one, which may fail too, and nested
    calls would go as deep as the queue is long.
    """

    def __init__(self) -> None:
        self._grants: deque[Grant] = deque()
        self._is_dispatching = False

    def grant_slots(self, grants: Iterable[Grant]) -> None:
        """Call `use_slot` of each ticket's owner with its endpoint, or `fail_request` with its error.

        When this returns, all grants are delivered, unless the caller is itself an owner that a grant is being
        delivered to: then this returns at once, and the outer call delivers them. An exception of an owner is logged
        and not raised.
        """
        self._grants.extend(grants)
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while self._grants:
                ticket, outcome = self._grants.popleft()
                try:
                    if isinstance(outcome, Endpoint):
                        ticket.owner.use_slot(outcome)
                    else:
                        ticket.owner.fail_request(outcome)
                except Exception:
                    logger.exception("a grant could not be delivered")
        finally:
            self._is_dispatching = False


@dataclass(slots=True)
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
    now: Callable[[], float]
    """Returns monotonic seconds."""
    clock: Callable[[], float]
    """Returns Unix time in seconds."""
    paces: AnswerPaces = field(default_factory=AnswerPaces)
    progress: ProgressBoard = field(default_factory=ProgressBoard)
    grants: GrantDispatcher = field(default_factory=GrantDispatcher)
    call_when_written: Callable[[Callable[[], None]], None] = field(default=lambda callback: callback())
    """Calls its argument when everything is written that was to be stored until now: at once where nothing is to be
    stored. Set by `create_gateway` alone."""
    bounds: Bounds = field(init=False)
    """What one request may ask for, from the settings."""
    hold_bytes: int = field(init=False)
    """The setting `answer_buffer_bytes`: maximum bytes of a blocking answer that are held until it is complete."""
    exchanges: set[Exchange] = field(default_factory=set)
    """All exchanges from the time their caller is known to their end."""

    def __post_init__(self) -> None:
        """Set `bounds` and `hold_bytes`."""
        settings = self.settings
        self.bounds = Bounds(settings.max_inputs, settings.max_choices, settings.max_images)
        self.hold_bytes = settings.answer_buffer_bytes
