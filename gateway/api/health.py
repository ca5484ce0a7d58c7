"""GET /health and GET /metrics. Both are served without a key and under any host name."""

from __future__ import annotations

from typing import Literal

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field

from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.ingress.route_access import require_access
from gateway.metrics.registry import Metrics
from gateway.routing.live_routes import LiveRoutes


class EngineHealth(BaseModel):
    """A replica that takes requests."""

    key: str = Field(description="Name of the replica.")
    model: str = Field(description="Name of the replica's model.")
    backend: str = Field(description="Backend of the model.")
    inflight: int = Field(description="Running requests of this gateway in the replica.")


class Health(BaseModel):
    """State of the gateway. Any answer means that the gateway is alive; the fields say what it can serve."""

    status: Literal["ok"] = "ok"
    service: Literal["roundhouse"] = "roundhouse"
    version: str = Field(description="Version of the gateway.")
    controller: str = Field(
        description="Link to the controller: `connected`; `lost` (the gateway uses the last routing table); "
        "`never` (no routing table was received yet)."
    )
    queue_depth: int = Field(description="Number of requests that wait for a slot or for a model to load.")
    engines_loaded: int = Field(description="Number of entries in `engines`.")
    engines: list[EngineHealth] = Field(description="Replicas that accept requests.")


def declare(
    app: FastAPI, *, version: str, live: LiveRoutes, ledger: InflightCounts, link: LinkState, metrics: Metrics
) -> None:
    """Add GET and HEAD of `/health` and `/metrics` to `app`. Both are open to everybody, without a key and under any
    host name. `version`: of the gateway. The other arguments are read at each request."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Liveness", tags=["operations"])
    @require_access("open")
    async def health() -> Health:
        """Answers 200 while the process serves."""
        routes = live.current_or_none
        engines = [
            EngineHealth(
                key=endpoint.replica,
                model=route.name,
                backend=route.backend,
                inflight=ledger.inflight.get(endpoint.replica, 0),
            )
            for route in (routes.models.values() if routes else ())
            for endpoint in route.endpoints
        ]
        return Health(
            version=version,
            controller=link.status_word,
            queue_depth=sum(ledger.queued.values()),
            engines_loaded=len(engines),
            engines=engines,
        )

    @app.head("/metrics", include_in_schema=False)
    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        tags=["operations"],
        response_class=PlainTextResponse,
        response_description="Metrics in Prometheus' text format.",
    )
    @require_access("open")
    async def prometheus() -> Response:
        """The gateway's metrics in Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
