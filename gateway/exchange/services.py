"""What an API is to the gateway, and what all its requests share."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from controller.schema.errors import RoundhouseError
from controller.schema.keys import KeyScope
from controller.schema.routing import Endpoint
from gateway.admission.admission import Admission, Grant
from gateway.admission.answer_pace import AnswerPaces
from gateway.control.inflight import InflightCounts
from gateway.control.remote_prober import RemoteProber
from gateway.documents.reader import DocumentReader
from gateway.exchange.exchange_state import ExchangeState
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.response_headers import ResponseHeaders
from gateway.metrics.registry import Metrics
from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.request import BodyKind, InferenceRequest, parse_native, parse_request
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.table import Routes
from gateway.server.call import ClientCall
from gateway.settings import GatewaySettings
from gateway.storage.completions.registry import StoredCompletions
from gateway.storage.responses.registry import StoredResponses
from gateway.tenancy.rate_limits import RateLimits
from gateway.upstream.client import EngineClient

logger = logging.getLogger(__name__)


class ActiveExchange(Protocol):
    """An exchange that is not over: `exchange.Exchange`."""

    due_at: float
    state: ExchangeState

    def run_due(self, now: float) -> None:
        """Something is due."""

    def fail_request(self, error: RoundhouseError) -> None:
        """Answer `error`, and be done."""


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """An API that engines answer, themselves or through a translation."""

    path: str
    """As clients ask for it; `{id}` stands for a number. `api_matrix.SERVING_OPTIONS` says how it is served."""
    method: str = "POST"
    streams: bool = False
    """It takes `stream`."""
    gathers: bool = False
    """It takes no `stream`, and an engine is asked for one all the same where that is how it notices a client that
    leaves, as with every API that takes one."""
    takes_slot: bool = True
    """An engine works on it in one of its slots, so it is admitted; else it goes in at once."""
    scope: KeyScope = field(kw_only=True)
    """That a key must have. Without a default: who adds an API says it, or the gateway does not start."""
    is_inner_state: bool = False
    """It changes or reveals an engine's inner state, so it is off by default."""
    body: BodyKind = "object"
    """What JSON a request must hold. Where it is no object, the model is named in the query."""
    state: Literal["none", "read", "made", "completion"] = "none"
    """Of what is stored: a request does nothing with it, continues a response, makes one, or makes a chat completion,
    which is stored where the request asks for that."""
    is_native: bool = False
    """llama.cpp's own: its model may be named in the query, or not at all where there is only one."""

    @property
    def dialect(self) -> Dialect:
        """Its family, as far as that is the same whatever the engine speaks: errors and heartbeats."""
        return SERVING_OPTIONS[self.path][0].dialect

    def read_request(self, body: bytes | LargeBody, client: ClientCall, routes: Routes) -> InferenceRequest:
        """What a request asks for. Raises RoundhouseError."""
        if not self.is_native:
            request = parse_request(body, may_stream=self.streams)
            request.target = self.path
            return request
        path = client.path.decode("latin-1") if "{" in self.path else self.path
        return parse_native(
            body, client.query, path, routes.sole_model(SERVING_OPTIONS[self.path][0].required_api), body=self.body
        )


class GrantDispatcher:
    """Tells requests that their turn has come. One that fails at once gives its slot to the next: in a loop, because
    calls would nest as deep as the queue is long."""

    def __init__(self) -> None:
        self._grants: deque[Grant] = deque()
        self._is_giving = False

    def grant_slots(self, grants: Iterable[Grant]) -> None:
        """All of them, before anything else runs."""
        self._grants.extend(grants)
        if self._is_giving:
            return
        self._is_giving = True
        try:
            while self._grants:
                ticket, outcome = self._grants.popleft()
                try:
                    if isinstance(outcome, Endpoint):
                        ticket.owner.use_slot(outcome)
                    else:
                        ticket.owner.fail_request(outcome)
                except Exception:
                    logger.exception("a request could not be told that its turn has come")
        finally:
            self._is_giving = False


@dataclass(frozen=True, slots=True)
class Services:
    """What every exchange works with. `now` gives monotonic seconds, `clock` Unix time."""

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
    now: Callable[[], float]
    clock: Callable[[], float]
    paces: AnswerPaces = field(default_factory=AnswerPaces)
    turns: GrantDispatcher = field(default_factory=GrantDispatcher)
    documents: DocumentReader = field(default_factory=DocumentReader)
    exchanges: set[ActiveExchange] = field(default_factory=set)
    """Those that are not over."""
