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
from gateway.exchange.grant_dispatcher import GrantDispatcher
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.response_headers import ResponseHeaders
from gateway.metrics.registry import Metrics
from gateway.routing.live_routes import LiveRoutes
from gateway.settings import GatewaySettings
from gateway.storage.completions.registry import StoredCompletions
from gateway.storage.responses.registry import StoredResponses
from gateway.streams.resumable_streams import ResumableStreams
from gateway.streams.stream_ids import name_model
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
    resumes: bool = False
    """A stream of it is kept for `X-Conversation-Id`, and can be read again."""
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
            request = self._parse_request(body, client)
            request.target = self.path
            return request
        path = client.path.decode("latin-1") if "{" in self.path else self.path
        return parse_native(
            body, client.query, path, routes.sole_model(SERVING_OPTIONS[self.path][0].required_api), body=self.body
        )

    def _parse_request(self, body: bytes | LargeBody, client: ClientCall) -> InferenceRequest:
        try:
            return parse_request(body, may_stream=self.streams)
        except RoundhouseError as error:
            model = name_model(client.headers) if self.resumes and error.param == "model" else None
            if model is None:
                raise
            return parse_request(body, may_stream=self.streams, usual_model=model)


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
    """The parts of the gateway that an exchange works with, made once."""

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
    turns: GrantDispatcher = field(default_factory=GrantDispatcher)
    documents: DocumentReader = field(default_factory=DocumentReader)
    exchanges: set[Exchange] = field(default_factory=set)
    """All exchanges from the time their caller is known to their end."""
