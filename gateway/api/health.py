"""GET /health, /health/live, /health/ready, /metrics and /metrics/engines, under any host name and without a key. If
`ROUNDHOUSE_METRICS_KEY` is set, /health/live alone needs none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel, Field

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.admission.admission import Admission
from gateway.api.declare import error_responses
from gateway.control.aicore_probe import AicoreProbe, AicoreStatus
from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.ingress.route_access import require_access
from gateway.metrics.engine_scraper import EngineScraper
from gateway.metrics.localllm_names import LoadedEngine
from gateway.metrics.registry import Metrics
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.degradation import Surroundings, hide_secrets_of_host, list_degradations
from gateway.routing.live_routes import LiveRoutes

_REFUSALS: Final = error_responses("invalid_api_key", "scope_required")
"""Where the metrics have a key."""


class EngineStart(BaseModel):
    """One start of a replica's engine."""

    backend: str
    result: str = Field(description="`ok`, or `failed: ` and the reason.")
    duration_ms: int = Field(description="Milliseconds from the start until the engine was ready, or had failed.")


class EngineHealth(BaseModel):
    """A replica that takes requests."""

    key: str = Field(
        description="`<model>_<tokens of its context, or model>_<backend>_<number of the replica, from 0>`."
    )
    backend: str = Field(description="Backend of the model.")
    model: str = Field(description="Name of the replica's model.")
    replica: str = Field(description="Name of the replica, as in metrics and logs.")
    inflight: int = Field(description="Running requests of this gateway in the replica.")
    attempts: list[EngineStart] = Field(
        description="The last starts of the replica with its definition, oldest first; the last one brought it up."
    )


class DegradedPart(BaseModel):
    """A part that does not work as it should."""

    part: str = Field(
        description="`controller`, `gateway` (another one, which is refused), `retrieval`, `certificate`, `clock`, "
        "`retrieval's clock`, `model NAME` or `replica NAME`."
    )
    reason: str


class AicoreHealth(BaseModel):
    """Whether Android's AICore, behind the model with the role `aicore`, can be used, as its server told some seconds
    ago. `error` is left out if the device could be asked."""

    status_code: int | None = Field(description="As of `/v1/aicore/status`; null: the device could not be asked.")
    status: str
    model_id: str
    is_default: Literal[True] = True
    error: str | None = Field(None, description="Why the device could not be asked.")


class Health(BaseModel):
    """State of the gateway. Any answer means that the gateway is alive; the fields say what it can serve. `aicore` is
    null also until the model with that role was first asked."""

    status: Literal["ok", "degraded"] = Field(description="`degraded` while `degraded` is not empty.")
    service: Literal["roundhouse"] = "roundhouse"
    version: str = Field(description="Version of the gateway.")
    controller: str = Field(
        description="Link to the controller: `connected`; `lost` (the gateway uses the last routing table); "
        "`refused` (it works with another gateway: this one serves nothing); `never` (no routing table was received "
        "yet)."
    )
    retrieval: Literal["off", "unknown", "up", "down"] = Field(
        description="Whether documents and searches are served; `unknown` in the first moments."
    )
    queue_depth: int = Field(description="Number of requests that wait for a slot or for a model to load.")
    engines_loaded: int = Field(description="Number of entries in `engines`.")
    engines: list[EngineHealth] = Field(description="Replicas that take requests; remote models have none.")
    degraded: list[DegradedPart]
    aicore: AicoreHealth | None = Field(description="Null: no model has the role `aicore`.")


class Liveness(BaseModel):
    """A health check that passed. At `/health/live`: the process serves; at `/health/ready`: requests can be routed."""

    status: Literal["ok"] = "ok"


@dataclass(slots=True)
class HealthSources:
    """What the health routes read. All of it is in memory: no answer waits for another program.

    Made once per gateway. Set `is_stopping` alone, when the gateway begins to stop.
    """

    version: str
    """Version of the gateway."""
    live: LiveRoutes
    ledger: InflightCounts
    link: LinkState
    admission: Admission
    find_retrieval: Callable[[], str]
    """Returns the field `retrieval`."""
    is_certificate_broken: Callable[[], bool]
    """Returns whether the files of the TLS certificate cannot be used, so that the previous one is served."""
    aicore: AicoreProbe
    find_clock_hold: Callable[[], str | None]
    """Returns why nothing is deleted by the wall clock; None: the clock is believed."""
    find_retrieval_notice: Callable[[], str | None]
    """Returns what retrieval says of itself (`ProgramProbe.notice`)."""
    is_stopping: bool = False
    """Whether the gateway begins to stop, so that it is not ready any more."""

    def describe_health(self) -> dict[str, Any]:
        """Return the fields of `Health`, as values of JSON. Without a routing table `engines` is empty, and `degraded`
        says so. Never raises for a part that does not work."""
        routes = self.live.current_or_none
        models = None if routes is None else list(routes.models.values())
        engines = [self._describe_engine(route, endpoint) for route, endpoint in self._iterate_engines()]
        degraded = list_degradations(
            Surroundings(
                self.link.status_word,
                self.find_retrieval(),
                models,
                self.admission.list_open_circuits(),
                self.is_certificate_broken(),
                self.link.refusal,
                () if routes is None else routes.refused_gateways,
                self.find_clock_hold(),
                self.find_retrieval_notice(),
            )
        )
        return {
            "status": "degraded" if degraded else "ok",
            "service": "roundhouse",
            "version": self.version,
            "controller": self.link.status_word,
            "retrieval": self.find_retrieval(),
            "queue_depth": sum(self.ledger.queued.values()),
            "engines_loaded": len(engines),
            "engines": engines,
            "degraded": [part._asdict() for part in degraded],
            "aicore": _describe_aicore(self.aicore.latest),
        }

    def check_ready(self) -> None:
        """Raise RoundhouseError where no request can be routed: `gateway_stopping`, or `controller_unavailable` before
        the first routing table."""
        if self.is_stopping:
            raise RoundhouseError("gateway_stopping", "The gateway stops: it takes no new requests.")
        self.live.check_table()

    def list_engines(self) -> list[LoadedEngine]:
        """Return the key (as `key` in `/health`) and backend of each replica that takes requests, in the order of the
        routing table. Endpoints of remote models are left out. Empty before the first table."""
        return [LoadedEngine(_engine_key(*engine), engine[0].backend) for engine in self._iterate_engines()]

    def _iterate_engines(self) -> Iterator[tuple[ModelRoute, Endpoint]]:
        routes = self.live.current_or_none
        for route in routes.models.values() if routes is not None else ():
            for endpoint in route.endpoints:
                if not endpoint.remote:
                    yield route, endpoint

    def _describe_engine(self, route: ModelRoute, endpoint: Endpoint) -> dict[str, Any]:
        return {
            "key": _engine_key(route, endpoint),
            "backend": route.backend,
            "model": route.name,
            "replica": endpoint.replica,
            "inflight": self.ledger.inflight.get(endpoint.replica, 0),
            "attempts": [
                {
                    "backend": route.backend,
                    "result": hide_secrets_of_host(each.result),
                    "duration_ms": each.duration_ms,
                }
                for each in endpoint.attempts
            ],
        }


def _engine_key(route: ModelRoute, endpoint: Endpoint) -> str:
    return f"{route.name}_{route.context_length or 'model'}_{route.backend}_{endpoint.index}"


def _describe_aicore(status: AicoreStatus | None) -> dict[str, Any] | None:
    if status is None:
        return None
    error = {} if status.error is None else {"error": status.error}
    return {
        "status_code": status.code,
        "status": status.word,
        "model_id": status.model_id,
        "is_default": True,
        **error,
    }


def declare(app: FastAPI, *, sources: HealthSources, metrics: Metrics, engines: EngineScraper) -> None:
    """Add GET and HEAD of `/health`, `/health/live`, `/health/ready`, `/metrics` and `/metrics/engines` to `app`.

    The routes are open under any host name, and all but `/health/live` need the metrics' key if one is set. `sources`,
    `metrics` and `engines` are read at each request. `DirectRoutes` answers GET of the three health paths before
    FastAPI.
    """

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Health", tags=["operations"], response_model=Health, responses=_REFUSALS)
    @require_access("metrics")
    async def health() -> Response:
        """Answers 200 while the process serves, and names what does not work."""
        # Thousands of replicas would take a framework's validation tens of milliseconds.
        return Response(json_bytes(sources.describe_health()), media_type="application/json")

    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live", summary="Liveness", tags=["operations"])
    @require_access("open")
    async def live() -> Liveness:
        """Answers 200 while the process serves."""
        return Liveness()

    @app.head("/health/ready", include_in_schema=False)
    @app.get("/health/ready", summary="Readiness", tags=["operations"], responses=_REFUSALS)
    @require_access("metrics")
    async def ready() -> Liveness:
        """Answers 200 while requests can be routed, else 503: no routing table was received yet, or the gateway
        stops."""
        sources.check_ready()
        return Liveness()

    @app.head("/metrics", include_in_schema=False)
    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        tags=["operations"],
        response_class=PlainTextResponse,
        response_description="Metrics in Prometheus' text format.",
        responses=_REFUSALS,
    )
    @require_access("metrics")
    async def prometheus() -> Response:
        """The gateway's metrics in Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.head("/metrics/engines", include_in_schema=False)
    @app.get(
        "/metrics/engines",
        summary="Engines' Prometheus metrics",
        tags=["operations"],
        response_class=PlainTextResponse,
        response_description="Metrics in Prometheus' text format.",
        responses=_REFUSALS,
    )
    @require_access("metrics")
    async def engine_metrics() -> Response:
        """The own metrics of all replicas in Prometheus' text format, with the labels `model` and `replica`.

        An engine that does not answer within 2 seconds has `roundhouse_engine_up` 0, and nothing else."""
        return Response(await engines.read_engines(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
