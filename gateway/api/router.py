"""The routes of llama-server's router mode: GET /models, GET /models/sse, POST /models/load and /models/unload.

llama-server's README (tools/server, "Using multiple models") describes them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import Body, FastAPI, Header, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from common.program_client import ProgramClient, ProgramGoneError
from controller.schema.admin import Modality
from controller.schema.errors import ERROR_CODES, RoundhouseError
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.api.admin import name_actor
from gateway.api.declare import ADMIN_SCOPE_CODES, ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.models import ModelObject, model_fields
from gateway.control.link import check_token_taken
from gateway.ingress.route_access import require_access
from gateway.routing.availability import find_model
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.model_events import ALL_MODELS, ROUTER_STATES, ModelEvent, ModelEventLog, RouterState

_LIST_CODES: Final = ("scope_required", *INGRESS_CODES)
_CHANGE_CODES: Final = (
    *("unknown_model", "state_conflict", "invalid_load_request", "scope_required", "controller_unavailable"),
    *ADMIN_SCOPE_CODES,
    *INGRESS_CODES,
)


class RouterStatus(BaseModel):
    """A model's state in the words of llama-server's router."""

    value: RouterState
    args: list[str] = Field(description="Always empty. The admin API shows command lines.")
    failed: bool = Field(description="Whether the last load of the model failed.")


class RouterArchitecture(BaseModel):
    """Kinds of input that a model accepts and of output that it makes, as llama-server's router lists them."""

    input_modalities: list[Modality]
    output_modalities: list[Literal["text"]]


class RouterModel(ModelObject):
    """A model as llama-server's router lists it, and as GET /v1/models does."""

    tags: list[str] = Field(description="Always empty.")
    status: RouterStatus
    architecture: RouterArchitecture


class RouterModelList(BaseModel):
    """The list of llama-server's router."""

    object: Literal["list"] = "list"
    data: list[RouterModel] = Field(description="The models, in name order.")


class RouterRequest(BaseModel):
    """Body of a load or an unload. Other fields are ignored."""

    model: str = Field(description="Name or alias of the model.", min_length=1, max_length=400)


class RouterDone(BaseModel):
    """Answer to a load or an unload that has begun, or was not needed."""

    success: Literal[True] = True


def describe_model(route: ModelRoute) -> RouterModel:
    """Return the model as llama-server's router lists it."""
    is_failed = route.state is ModelState.FAILED
    fields = model_fields(route)
    architecture = RouterArchitecture(input_modalities=fields["modalities"], output_modalities=["text"])
    status = RouterStatus(value=ROUTER_STATES[route.state], args=[], failed=is_failed)
    return RouterModel(**fields, tags=[], status=status, architecture=architecture)


def declare(
    app: FastAPI, live: LiveRoutes, events: ModelEventLog, controller: ProgramClient, *, heartbeat_s: float
) -> None:
    """Add the routes to `app`. Loads and unloads are asked of `controller`; `events` must follow the tables of `live`.

    `heartbeat_s`: seconds of silence before a comment is sent in an event stream.
    """

    def seen(request: Request) -> Iterator[ModelRoute]:
        may_see = request.state.caller.may_see_model
        return (route for route in live.current.models.values() if may_see(route))

    @app.get(
        "/models",
        summary="Declared models, as llama-server's router",
        description="Lists the same models in the form of llama-server's router, with `status.value` unloaded, "
        "loading or loaded.\n\n" + codes_paragraph(_LIST_CODES),
        tags=["models"],
        responses=error_responses(*_LIST_CODES),
    )
    @require_access("inference")
    async def list_for_router(request: Request) -> RouterModelList:
        return RouterModelList(data=[describe_model(route) for route in seen(request)])

    @app.get(
        "/models/sse",
        summary="Events of models, as llama-server's router",
        description="Server-sent events from now on, or after `Last-Event-ID`: `model_status`, `model_remove`, "
        "`models_reload`. After events that are not kept any more comes `models_reload`: list the models anew.\n\n"
        + codes_paragraph(_LIST_CODES),
        tags=["models"],
        responses=error_responses(*_LIST_CODES),
    )
    @require_access("inference")
    async def follow(request: Request, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
        live.check_table()
        after = _read_event_id(last_event_id, events.last_id)
        stream = follow_events(events, request.state.caller.may_see_model, after, heartbeat_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def change(request: Request, name: str, step: str, body: dict[str, Any]) -> RouterDone:
        route = find_model(live.current, name)
        await _ask_controller(controller, f"{quote(route.name)}/{step}?wait=false", body, name_actor(request.scope))
        return RouterDone()

    @app.post(
        "/models/load",
        summary="Load a model, as llama-server's router",
        description="Begins to load a model and answers at once. The admin API can wait, and set values.\n\n"
        + codes_paragraph(_CHANGE_CODES),
        tags=["models"],
        responses=error_responses(*_CHANGE_CODES) | ANY_OTHER,
    )
    @require_access("admin")
    async def load(request: Request, body: Annotated[RouterRequest, Body()]) -> RouterDone:
        return await change(request, body.model, "load", {})

    @app.post(
        "/models/unload",
        summary="Unload a model, as llama-server's router",
        description="Begins to unload a model and answers at once: running requests finish. As in llama-server, the "
        "next request loads an `autoload` model again.\n\n" + codes_paragraph(_CHANGE_CODES),
        tags=["models"],
        responses=error_responses(*_CHANGE_CODES) | ANY_OTHER,
    )
    @require_access("admin")
    async def unload(request: Request, body: Annotated[RouterRequest, Body()]) -> RouterDone:
        return await change(request, body.model, "unload", {"hold": False})


def _read_event_id(text: str | None, newest_id: int) -> int:
    """Return the id to go on after; that of the newest event where the header is missing or no number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else newest_id


async def follow_events(
    log: ModelEventLog, may_see: Callable[[ModelRoute], bool], after: int, heartbeat_s: float
) -> AsyncIterator[bytes]:
    """Yield the server-sent events after the one with the id `after`, and new ones until the log is closed.

    Only models that `may_see` allows are told. Where events are missing, one `models_reload` takes their place. A
    comment is yielded after `heartbeat_s` seconds of silence, and at once in the beginning.
    """
    changed = asyncio.Event()
    log.add_listener(changed.set)
    try:
        yield b": ok\n\n"
        while True:
            changed.clear()
            new_events = log.list_after(after)
            if new_events is None:
                new_events = [ModelEvent(log.last_id, "models_reload", ALL_MODELS)]
            for event in new_events:
                after = event.id
                if event.route is None or may_see(event.route):
                    yield b"id: %d\ndata: %b\n\n" % (event.id, json.dumps(event.describe()).encode())
            if log.is_closed:
                return
            if not await _wait_for(changed, heartbeat_s):
                yield b": heartbeat\n\n"
    finally:
        log.remove_listener(changed.set)


async def _wait_for(changed: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await changed.wait()
        return True
    return False


async def _ask_controller(controller: ProgramClient, path: str, body: dict[str, Any], actor: str) -> None:
    """Make an admin request about a model. Raises RoundhouseError with the controller's own code, or
    `controller_unavailable`."""
    headers = {"content-type": "application/json", "x-roundhouse-actor": actor}
    target = f"/v1/admin/models/{path}"
    try:
        async with await controller.send_request("POST", target, headers, json.dumps(body).encode()) as answer:
            check_token_taken(answer)
            if answer.status >= 400:
                raise _read_error(await answer.read_body())
    except ProgramGoneError as error:
        message = f"The controller does not answer: {error}. Inference goes on without it."
        raise RoundhouseError("controller_unavailable", message) from error


def _read_error(body: bytes) -> RoundhouseError:
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)["error"]
        if error["code"] in ERROR_CODES:
            return RoundhouseError(error["code"], error["message"], param=error.get("param"))
    return RoundhouseError("internal_error", "The controller failed on this request.")
