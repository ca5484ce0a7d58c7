"""GET /v1/aicore/status, POST and GET /v1/aicore/benchmark: about the model with the role `aicore`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import Body, FastAPI, Query, Request, Response
from pydantic import BaseModel, Field

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.api.benchmarks import BenchmarkRequest, BenchmarkResult, Benchmarks
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.control.aicore_probe import AicoreProbe, AicoreStatus, find_aicore
from gateway.ingress.route_access import require_access
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.live_routes import LiveRoutes

_CODES: Final = ("AICORE_UNAVAILABLE", "AICORE_UNKNOWN", "model_not_allowed", "scope_required", *INGRESS_CODES)
_NOT_READY: Final = {2: "AICORE_DOWNLOADABLE", 1: "AICORE_DOWNLOADING", 0: "AICORE_UNAVAILABLE"}
_DEVICE: Final = ("soc_model", "device", "manufacturer")


class AicoreReadiness(BaseModel):
    """Whether Android's AICore, behind the model with the role `aicore`, can be used, and on what device. All further
    fields of the server's own answer stand beside these; with `?probe=all`, they tell of each configuration."""

    model_id: str
    status_code: Literal[0, 1, 2, 3] = Field(
        description="3: available. 2: downloadable. 1: downloading. 0: unavailable."
    )
    status: Literal["available", "downloadable", "downloading", "unavailable"]
    available: bool
    soc_model: str | None = Field(description="Null, as the two below: the server does not tell.")
    device: str | None
    manufacturer: str | None


def require_ready(status: AicoreStatus) -> None:
    """Do nothing if AICore is available, as told in `status`; nobody is asked.

    Raises:
        RoundhouseError: `AICORE_DOWNLOADABLE`, `AICORE_DOWNLOADING` or `AICORE_UNAVAILABLE`, by the status code;
            `AICORE_UNKNOWN` if there is none, because the device could not be asked.
    """
    if status.code == 3:
        return
    code = "AICORE_UNKNOWN" if status.code is None else _NOT_READY[status.code]
    raise RoundhouseError(code, status.error or f"AICore is {status.word} on the device.", param="model")


def describe_aicore(status: AicoreStatus) -> dict[str, Any]:
    """Return the body of `GET /v1/aicore/status`: the server's own fields, overridden by those of `AicoreReadiness`.

    `status.code` must not be None, as the answer has no word for that. What the server does not tell of its device is
    None.
    """
    device = {name: status.told.get(name) for name in _DEVICE}
    own = {"model_id": status.model_id, "status_code": status.code, "status": status.word}
    return {**status.told, **own, "available": status.code == 3, **device}


def declare(app: FastAPI, live: LiveRoutes, probe: AicoreProbe, benchmarks: Benchmarks) -> None:
    """Add `GET /v1/aicore/status`, and `GET` and `POST /v1/aicore/benchmark`, to `app`.

    The routes answer for the model with the role `aicore` in the routing table in force. Without such a model, they
    answer `AICORE_UNAVAILABLE`.
    """

    def find_model(request: Request) -> ModelRoute:
        route = find_aicore(live.current)
        if route is None:
            raise RoundhouseError("AICORE_UNAVAILABLE", "No model has the role `aicore`.")
        request.state.caller.require_model(route)
        return route

    @app.get(
        "/v1/aicore/status",
        summary="Whether AICore is ready",
        description=f"Asks the device each time.\n\n{codes_paragraph(_CODES)}",
        tags=["models"],
        response_model=AicoreReadiness,
        responses=error_responses(*_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def get_status(
        request: Request, probe_kind: Annotated[Literal["all"] | None, Query(alias="probe")] = None
    ) -> Response:
        status = await probe.ask(find_model(request), probes_all=probe_kind == "all")
        if status.code is None:
            require_ready(status)
        return Response(json_bytes(describe_aicore(status)), media_type="application/json")

    @app.get(
        "/v1/aicore/benchmark",
        summary="The last benchmark of AICore",
        description=codes_paragraph(("benchmark_not_found", *_CODES)),
        tags=["models"],
        responses=error_responses("benchmark_not_found", *_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def get_benchmark(request: Request) -> BenchmarkResult:
        return benchmarks.find_result(find_model(request))

    @app.post(
        "/v1/aicore/benchmark",
        summary="Measure AICore's speed",
        description="As `POST /v1/models/{model}/benchmark`, once AICore is available.\n\n"
        + codes_paragraph((*_NOT_READY.values(), *_CODES)),
        tags=["models"],
        responses=error_responses(*_NOT_READY.values(), *_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def run_benchmark(
        request: Request, wanted: Annotated[BenchmarkRequest | None, Body()] = None
    ) -> BenchmarkResult:
        route = find_model(request)
        require_ready(await probe.ask(route))
        return await benchmarks.measure(request, route, wanted or BenchmarkRequest())
