"""Health, metrics, limits and the clock of the gateway. Health and metrics are served under any host name and without a
key; if `ROUNDHOUSE_METRICS_KEY` is set, /health/live alone needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel, Field

from common.trusted_clock import TrustedClock
from contract.errors import RoundhouseError
from contract.route_spec import RouteSpec
from contract.routing import Endpoint, ModelRoute
from contract.status import ModelState
from gateway.admission.admission import Admission
from gateway.api.declare import HttpRoutes
from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.control.remote_prober import AicoreProbe, AicoreStatus
from gateway.metrics.engine_scraper import EngineScraper
from gateway.metrics.history import MINUTE_S, MetricsHistory
from gateway.metrics.request_metrics import Metrics
from gateway.metrics.state_metrics import LoadedEngine
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.availability import Degradation, Surroundings, hide_secrets_of_host, list_degradations
from gateway.routing.table import LiveRoutes
from gateway.server.asgi import Header
from gateway.settings import MIB, GatewaySettings
from gateway.tenancy.api_keys import ANONYMOUS, Caller

_route = partial(RouteSpec, "GET", access="metrics", tag="operations")


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
        "`retrieval's clock`, `model NAME` or `replica NAME`; without a key where keys are declared, `models`."
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
    """State of the gateway. Any answer means that the gateway is alive; the fields say what it can serve. Of models it
    holds what the key may see: a key its own ones; without a key, where keys are declared, none by name. `aicore` is
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
    queue_depth: int = Field(
        description="Number of requests that wait for a slot or for a model to load, of these models."
    )
    engines_loaded: int = Field(description="Number of entries in `engines`.")
    engines: list[EngineHealth] = Field(
        description="Replicas of these models that take requests; remote models have none."
    )
    degraded: list[DegradedPart]
    aicore: AicoreHealth | None = Field(description="Null: none of these models has the role `aicore`.")


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
    find_viewer: Callable[[Sequence[Header]], Caller | None]
    """Returns who asks (`Authenticator.find_viewer`)."""
    is_stopping: bool = False
    """Whether the gateway begins to stop, so that it is not ready any more."""

    def describe_health(self, headers: Sequence[Header]) -> dict[str, Any]:
        """Return the fields of `Health`, as values of JSON, of the models that the sender of a request with these
        headers may see. To who may see none because no key is shown, models that do not work are counted in one part.
        Without a routing table `engines` is empty, and `degraded` says so. Never raises for a part that does not
        work."""
        routes, viewer = self.live.current_or_none, self.find_viewer(headers)
        models = [] if routes is None else [each for each in routes.models.values() if _may_see(viewer, each)]
        engines = [self._describe_engine(route, endpoint) for route, endpoint in _iterate_engines(models)]
        seen = {endpoint.replica for route in models for endpoint in route.endpoints}
        seen_names, broken = {route.name for route in models}, self.admission.list_open_circuits()
        aicore = self.aicore.latest
        degraded = list_degradations(
            Surroundings(
                self.link.status_word,
                self.find_retrieval(),
                None if routes is None else models,
                [each for each in broken if each in seen or viewer is ANONYMOUS],
                self.is_certificate_broken(),
                self.link.refusal,
                () if routes is None else routes.refused_gateways,
                self.find_clock_hold(),
                self.find_retrieval_notice(),
            )
        )
        if viewer is None and routes is not None:
            failed = sum(route.state == ModelState.FAILED for route in routes.models.values())
            if failed or broken:
                counts = f"Failed: {failed}; replicas whose connections fail: {len(broken)}."
                degraded.append(Degradation("models", f"{counts} With a key, its own models are named."))
        return {
            "status": "degraded" if degraded else "ok",
            "service": "roundhouse",
            "version": self.version,
            "controller": self.link.status_word,
            "retrieval": self.find_retrieval(),
            "queue_depth": sum(n for name, n in self.ledger.queued.items() if viewer is None or name in seen_names),
            "engines_loaded": len(engines),
            "engines": engines,
            "degraded": [part._asdict() for part in degraded],
            "aicore": _describe_aicore(aicore) if aicore is not None and aicore.model_id in seen_names else None,
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
        routes = self.live.current_or_none
        models = routes.models.values() if routes is not None else ()
        return [LoadedEngine(_engine_key(*engine), engine[0].backend) for engine in _iterate_engines(models)]

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


def _may_see(viewer: Caller | None, route: ModelRoute) -> bool:
    return viewer is not None and viewer.may_see_model(route)


def _iterate_engines(models: Iterable[ModelRoute]) -> Iterator[tuple[ModelRoute, Endpoint]]:
    for route in models:
        for endpoint in route.endpoints:
            if not endpoint.remote:
                yield route, endpoint


def _engine_key(route: ModelRoute, endpoint: Endpoint) -> str:
    return f"{route.name}_{route.context_length or 'model'}_{route.backend}_{endpoint.index}"


def _describe_aicore(status: AicoreStatus) -> dict[str, Any]:
    error = {} if status.error is None else {"error": status.error}
    return {
        "status_code": status.code,
        "status": status.word,
        "model_id": status.model_id,
        "is_default": True,
        **error,
    }


def declare_health(routes: HttpRoutes, *, sources: HealthSources, metrics: Metrics, engines: EngineScraper) -> None:
    """Add GET and HEAD of `/health`, `/health/live`, `/health/ready`, `/metrics` and `/metrics/engines`.

    The routes are open under any host name, and all but `/health/live` need the metrics' key if one is set. `sources`,
    `metrics` and `engines` are read at each request. `HealthCall` answers GET of the three health paths before
    FastAPI.
    """
    text: dict[str, Any] = {
        "response_class": PlainTextResponse,
        "response_description": "Metrics in Prometheus' text format.",
    }

    @routes.app.head("/health", include_in_schema=False)
    @routes.add(_route("/health", "Health", answer=Health))
    async def health(request: Request) -> Response:
        """Answers 200 while the process serves, and names what does not work. Where keys are declared, of models what
        the key may see: all with the scope `admin`, none without a key."""
        # Thousands of replicas would take a framework's validation tens of milliseconds.
        answer = sources.describe_health(request.headers.raw)
        return Response(json_bytes(answer), media_type="application/json")

    @routes.app.head("/health/live", include_in_schema=False)
    @routes.add(_route("/health/live", "Liveness", answer=Liveness, access="open"))
    async def live() -> Liveness:
        """Answers 200 while the process serves."""
        return Liveness()

    @routes.app.head("/health/ready", include_in_schema=False)
    @routes.add(_route("/health/ready", "Readiness", answer=Liveness))
    async def ready() -> Liveness:
        """Answers 200 while requests can be routed, else 503: no routing table was received yet, or the gateway
        stops."""
        sources.check_ready()
        return Liveness()

    @routes.app.head("/metrics", include_in_schema=False)
    @routes.add(_route("/metrics", "Prometheus metrics"), **text)
    async def prometheus() -> Response:
        """The gateway's metrics in Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @routes.app.head("/metrics/engines", include_in_schema=False)
    @routes.add(_route("/metrics/engines", "Engines' Prometheus metrics"), **text)
    async def engine_metrics() -> Response:
        """The own metrics of all replicas in Prometheus' text format, with the labels `model` and `replica`.

        An engine that does not answer within 2 seconds has `roundhouse_engine_up` 0, and nothing else."""
        return Response(await engines.read_engines(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class ModelHistory(BaseModel):
    """A model's last minutes, the newest last: at most 60, and fewer of a model or a gateway that is younger."""

    tokens_per_s: list[float] = Field(
        description="Generated tokens per second, of the requests that ended in the minute."
    )
    waiting: list[int] = Field(description="Most requests that waited in the minute, of a look every 5 seconds.")
    first_token_s: list[float | None] = Field(
        description="Median time to the first token of the minute's streams; null: there was none."
    )


class MetricsHistoryAnswer(BaseModel):
    """Answer of `GET /v1/metrics/history`: by minutes, what each declared model did in the last hour."""

    object: Literal["metrics.history"] = "metrics.history"
    interval_s: float = Field(description="Seconds of a minute, the step between two values.")
    models: dict[str, ModelHistory] = Field(description="Minutes by the model's name.")


def declare_history(routes: HttpRoutes, history: MetricsHistory) -> None:
    """Add `GET /v1/metrics/history`, which answers `history`."""

    @routes.add(
        RouteSpec(
            "GET",
            "/v1/metrics/history",
            "The last hour of each model",
            answer=MetricsHistoryAnswer,
            access="admin",
            tag="operations",
        )
    )
    async def metrics_history() -> Response:
        """Tokens, waiting requests and times to the first token, by minutes. The gateway keeps them in memory, so that
        they begin anew when it starts; for longer times, read `/metrics` into Prometheus."""
        models = {
            name: {
                "tokens_per_s": [round(each.tokens_per_s, 2) for each in minutes],
                "waiting": [each.waiting for each in minutes],
                "first_token_s": [each.first_token_s and round(each.first_token_s, 4) for each in minutes],
            }
            for name, minutes in history.minutes.items()
        }
        answer = {"object": "metrics.history", "interval_s": MINUTE_S, "models": models}
        return Response(json_bytes(answer), media_type="application/json")


class Limits(BaseModel):
    """The limits of a gateway, the same for every caller."""

    object: Literal["limits"] = "limits"
    max_body_bytes: int = Field(
        description="Largest body of a request, and most bytes of a conversation or history that a response continues."
    )
    max_document_bytes: int | None = Field(description="Largest document; null: this gateway takes no documents.")
    retention_s: float = Field(
        description="Seconds that responses, conversations and chat completions are kept after they were made or last "
        "continued; 0: nothing is kept."
    )
    max_stored_bytes: int = Field(
        description="Most bytes of all that is kept, of all tenants; the least recently used gives way."
    )
    stream_ttl_s: float = Field(description="Seconds that a resumable stream is kept after its end.")
    max_inputs: int = Field(description="Most prompts, texts to embed or documents to rerank in one request.")
    max_choices: int = Field(description="Most answers to one prompt (`n`, `best_of`).")
    max_images: int = Field(description="Most images in the messages or items of one request.")
    max_tool_calls: int = Field(description="Most calls that the gateway runs after one round of a model.")

    @classmethod
    def of(cls, settings: GatewaySettings) -> Limits:
        """Return the limits that the settings set."""
        return cls(
            max_body_bytes=settings.max_body_bytes,
            max_document_bytes=settings.retrieval_max_file_mib * MIB if settings.retrieval else None,
            retention_s=settings.responses_retention_s,
            max_stored_bytes=settings.responses_max_mib * MIB,
            stream_ttl_s=settings.stream_ttl_s,
            max_inputs=settings.max_inputs,
            max_choices=settings.max_choices,
            max_images=settings.max_images,
            max_tool_calls=settings.max_tool_calls,
        )


def declare_limits(routes: HttpRoutes, limits: Limits) -> None:
    """Add `GET /v1/limits`, which answers `limits`."""

    @routes.add(RouteSpec("GET", "/v1/limits", "Limits of this gateway", answer=Limits, tag="operations"))
    async def get_limits() -> Limits:
        """Extension of OpenAI's API. Rates are told in the headers of each answer, and what a model takes by `GET
        /v1/models`."""
        return limits


class ConfirmedClock(BaseModel):
    """The gateway believes its wall clock."""

    object: Literal["clock"] = "clock"
    was_held: bool = Field(description="Whether the clock was not believed before, so that nothing was deleted by it.")


def declare_clock(routes: HttpRoutes, trusted_clock: TrustedClock) -> None:
    """Add `POST /v1/clock/confirm`, which confirms `trusted_clock`."""

    @routes.add(
        RouteSpec(
            "POST",
            "/v1/clock/confirm",
            "Confirm the gateway's clock",
            answer=ConfirmedClock,
            access="admin",
            tag="operations",
        )
    )
    async def confirm_clock() -> ConfirmedClock:
        """Says that the wall clock of the gateway is right, so that what has expired by it is deleted. Needed only
        while `/health` names `clock` in `degraded` and nobody wants to wait."""
        return ConfirmedClock(was_held=await asyncio.to_thread(trusted_clock.confirm))
