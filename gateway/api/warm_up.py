"""POST /health/warm: loads a model if it must, and waits for its first token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Query, Request, Response
from pydantic import BaseModel, Field

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.api.deadline import DeadlineError, Lifetime
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.control.aicore_probe import AicoreProbe
from gateway.exchange.inner_requests import InnerAnswer, InnerRequests
from gateway.exchange.speed_test import probe_request
from gateway.ingress.route_access import require_access
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.availability import find_model
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.table import Routes
from gateway.server.asgi import ClientGoneError

WARM_TIMEOUT_S: Final = 60.0
"""Seconds after which a warm-up answers `timeout` if the request sets no `timeout_s`. A load that has begun goes on."""
_CODES: Final = ("invalid_request", "unknown_model", "model_not_allowed", "scope_required", *INGRESS_CODES)


class WarmModel(BaseModel):
    """Answer with status 200 of a warm-up: the model has answered."""

    model: str
    status: Literal["warm"] = "warm"
    engine_loaded: Literal[True] = True
    ms: int = Field(description="Milliseconds that the warm-up took.")


class ColdModel(BaseModel):
    """Answer of a warm-up in which the model has not answered: status 504 with `timeout`, else 503. `ms`: milliseconds
    that it took. A load that has begun goes on."""

    status: Literal["error", "timeout", "aicore_not_ready"]
    aicore_status: str | None = Field(
        None, description="With `aicore_not_ready`: `downloadable`, `downloading`, `unavailable` or `unknown`."
    )
    error: str | None = Field(None, description="With `error`: the reason.")
    code: str | None = Field(None, description="With `error`: the error code, as inference requests get it.")
    ms: int


def choose_model(routes: Routes, named: str | None, default: str | None) -> ModelRoute:
    """Return the model to warm up: the named one, else the default one, else the only one that is declared.

    `named`, `default`: a name or an alias. `named` None or empty: the request names no model; `default` None: there is
    no default. Whether the caller may use the model is not checked.

    Raises:
        RoundhouseError: `unknown_model` if no model has the name; `invalid_request` if there is no name, and not
            exactly one model.
    """
    name = named or default
    if name is not None:
        return find_model(routes, name)
    if len(routes.models) != 1:
        message = "Name a model, by `?model=`, or set ROUNDHOUSE_DEFAULT_MODEL: there is not one alone."
        raise RoundhouseError("invalid_request", message, param="model")
    return next(iter(routes.models.values()))


def declare(
    app: FastAPI,
    live: LiveRoutes,
    requests: InnerRequests,
    aicore: AicoreProbe,
    *,
    default_model: str | None,
    now: Callable[[], float],
) -> None:
    """Add `POST /health/warm` to `app`.

    The route sends the model one small request through `requests` and waits for the answer.

    A model with the role `aicore` gets the request only if the probe `aicore` reports that it is available.
    `default_model`: name or alias of the model to warm up if the client names none; None: the only declared model, and
    `invalid_request` if there is not exactly one. `now` returns monotonic seconds.
    """

    @app.post(
        "/health/warm",
        summary="Warm up a model",
        description="Asks the model for one token, which loads it if requests may load it, and waits for the answer. "
        "Other requests are not held up; the request counts as one for the key's limits.\n\n" + codes_paragraph(_CODES),
        tags=["models"],
        response_model=WarmModel,
        responses=error_responses(*_CODES) | ANY_OTHER | {503: {"model": ColdModel}, 504: {"model": ColdModel}},
    )
    @require_access("inference")
    async def warm_up(
        request: Request,
        model: Annotated[str | None, Query(description="Name or alias; default: ROUNDHOUSE_DEFAULT_MODEL.")] = None,
        timeout_s: Annotated[float, Query(ge=0.1, le=3600)] = WARM_TIMEOUT_S,
    ) -> Response:
        caller, began_at = request.state.caller, now()
        route = choose_model(live.current, model, default_model)
        caller.require_model(route)
        if route.role == "aicore" and (status := await aicore.ask(route)).code != 3:
            told = {"status": "aicore_not_ready", "aicore_status": status.word}
            return _answer(503, {**told, "ms": _elapsed_ms(began_at, now())})
        path, body = probe_request(route)
        try:
            with Lifetime(timeout_s) as lifetime:
                lifetime.watch_client(request.receive, lambda: False)
                answer = await requests.send_request(path, body, request.headers.raw, caller)
        except DeadlineError:
            return _answer(504, {"status": "timeout", "ms": _elapsed_ms(began_at, now())})
        except ClientGoneError:
            return Response()  # which nobody gets
        return _report(route, answer, _elapsed_ms(began_at, now()))


def _report(route: ModelRoute, answer: InnerAnswer, ms: int) -> Response:
    error = answer.error
    if error is None:
        return _answer(200, {"model": route.name, "status": "warm", "engine_loaded": True, "ms": ms})
    told = {"status": "error", "error": str(error.get("message")), "code": str(error.get("code")), "ms": ms}
    return _answer(503, told)


def _elapsed_ms(began_at: float, ended_at: float) -> int:
    return round(1000 * (ended_at - began_at))


def _answer(status: int, fields: dict[str, Any]) -> Response:
    return Response(json_bytes(fields), status, media_type="application/json")
