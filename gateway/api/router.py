"""The routes of llama-server's router mode: GET, POST and DELETE /models, GET /models/sse, POST /models/load and
/models/unload.

llama-server's README (tools/server, "Using multiple models") describes them; docs/router.md says what is different.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from controller.schema.errors import RoundhouseError
from gateway.api.admin import name_actor
from gateway.api.declare import ADMIN_SCOPE_CODES, ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.models import ModelObject, list_models_seen
from gateway.api.stored_requests import body_of, read_fields
from gateway.control.router_changes import RouterChanges
from gateway.ingress.admin_gate import AdminGate
from gateway.ingress.route_access import require_access
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.model_events import ALL_MODELS, ModelEvent, ModelEventLog
from gateway.server.asgi import local_address_of
from gateway.server.request_head import ROUTER_PROPS_PATH

_LIST_CODES: Final = ("scope_required", *INGRESS_CODES)
_RELOAD_CODES: Final = ("controller_unavailable", *ADMIN_SCOPE_CODES, *_LIST_CODES)
_CHANGE_CODES: Final = ("unknown_model", "state_conflict", "controller_unavailable", *ADMIN_SCOPE_CODES, *_LIST_CODES)
_LOAD_CODES: Final = ("invalid_load_request", *_CHANGE_CODES)
_SOURCE_CODES: Final = (
    *("reference_invalid", "source_not_found", "source_forbidden", "source_address_refused", "source_unavailable"),
    *("source_mismatch", "downloads_disabled", "transfers_unreachable", "models_folder_failed"),
)
_DOWNLOAD_CODES: Final = ("invalid_declaration", "declared_in_files", "models_disk_full", *_SOURCE_CODES)
_REMOVE_CODES: Final = ("declared_in_files", "models_file_kept", "downloads_disabled", "transfers_unreachable")
_EVENT_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Events of models.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
}
ROUTER_PROPS: Final = ROUTER_PROPS_PATH.decode()
_LONGEST_NAME: Final = 400
MAX_BODY_BYTES: Final = 64 * 1024
"""Most bytes of a body here, which names a model. Other fields are ignored."""
_CHANGED: Final = body_of({"model": {"type": "string", "description": "Name or alias of the model."}}, "model")
_DOWNLOADED: Final = body_of(
    {
        "model": {
            "type": "string",
            "description": "What to download, such as `ggml-org/gemma-3-4b-it-GGUF:Q4_K_M`: a reference of "
            "docs/transfers.md. It is the model's name, too.",
        }
    },
    "model",
)
_NameQuery = Annotated[str, Query(description="Name or alias of the model.", min_length=1, max_length=_LONGEST_NAME)]


class RouterModelList(BaseModel):
    """The list of llama-server's router."""

    object: Literal["list"] = "list"
    data: list[ModelObject] = Field(description="The models, in name order.")


class RouterDone(BaseModel):
    """Answer to a change that has begun, or was not needed."""

    success: Literal[True] = True


def declare(
    app: FastAPI,
    live: LiveRoutes,
    events: ModelEventLog,
    changes: RouterChanges,
    gate: AdminGate,
    *,
    heartbeat_s: float,
) -> None:
    """Add the routes of llama-server's router mode, `/models` and those below it, to `app`.

    `events` must follow the tables of `live`. `gate` says who may have the files read anew and sees the engines'
    command lines; the routes that change something require the access `admin`.

    `heartbeat_s`: seconds of silence before a comment is sent in an event stream.
    """
    _declare_lists(app, live, events, changes, gate)
    _declare_events(app, live, events, heartbeat_s)
    _declare_loads(app, changes)
    _declare_downloads(app, changes)


async def _read_name(request: Request) -> str:
    """Return the model that a body names, whatever its Content-Type says: as llama-server does."""
    name = (await read_fields(request, MAX_BODY_BYTES)).get("model")
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
        message = f"`model` must be a text of 1 to {_LONGEST_NAME} characters."
        raise RoundhouseError("invalid_request", message, param="model")
    return name


def _declare_lists(
    app: FastAPI, live: LiveRoutes, events: ModelEventLog, changes: RouterChanges, gate: AdminGate
) -> None:
    @app.get(
        "/models",
        summary="Declared models, as llama-server's router",
        description="Lists the same models as GET /v1/models. With the scope `admin`, `status.args` is the engine's "
        "command line, and `reload` reads the desired-state files first; models whose definition is unchanged go on."
        "\n\n" + codes_paragraph(_RELOAD_CODES),
        tags=["models"],
        responses=error_responses(*_RELOAD_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def list_for_router(
        request: Request,
        reload: Annotated[
            str, Query(description="Any value: read the files first. Needs the scope `admin`.", max_length=100)
        ] = "",
    ) -> RouterModelList:
        caller, address = request.state.caller, local_address_of(request.scope)
        if reload:
            gate.authorize_request(caller, "admin", address)
            await changes.reload_files(name_actor(request.scope))
        models = list_models_seen(request, live, events)
        if gate.allows_admin(caller, address):
            commands = await changes.list_commands()
            for each in models:
                each.status.args = commands.get(each.id, [])
        return RouterModelList(data=models)


def _declare_events(app: FastAPI, live: LiveRoutes, events: ModelEventLog, heartbeat_s: float) -> None:
    @app.get(
        ROUTER_PROPS,
        summary="Properties of the router",
        description="What `GET /props` answers where no model is named, as llama-server's router does.\n\n"
        + codes_paragraph(_LIST_CODES),
        tags=["models"],
        responses=error_responses(*_LIST_CODES),
    )
    @require_access("inference")
    async def props() -> dict[str, Any]:
        return describe_router(live)

    @app.get(
        "/models/sse",
        summary="Events of models, as llama-server's router",
        description="Server-sent events from now on, or after `Last-Event-ID`: `model_status`, `model_remove`, "
        "`models_reload`, `download_progress`, `download_finished`, `download_failed`. After events that are not kept "
        "any more comes `models_reload`: list the models anew.\n\n" + codes_paragraph(_LIST_CODES),
        tags=["models"],
        response_class=StreamingResponse,
        responses=_EVENT_STREAM | error_responses(*_LIST_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def follow(request: Request, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
        live.check_table()
        after = events.last_id if last_event_id is None else events.read_id(last_event_id)
        stream = follow_events(events, request.state.caller.may_see_name, after, heartbeat_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _declare_loads(app: FastAPI, changes: RouterChanges) -> None:
    @app.post(
        "/models/load",
        summary="Load a model, as llama-server's router",
        description="Begins to load a model and answers at once. The admin API can wait, and set values.\n\n"
        + codes_paragraph(_LOAD_CODES),
        tags=["models"],
        responses=error_responses(*_LOAD_CODES) | ANY_OTHER,
        openapi_extra=_CHANGED,
    )
    @require_access("admin")
    async def load(request: Request) -> RouterDone:
        await changes.load_model(await _read_name(request), name_actor(request.scope))
        return RouterDone()

    @app.post(
        "/models/unload",
        summary="Unload a model, as llama-server's router",
        description="Begins to unload a model and answers at once: running requests finish. As in llama-server, the "
        "next request loads an `autoload` model again, and a download of the model's files is cancelled.\n\n"
        + codes_paragraph(_LOAD_CODES),
        tags=["models"],
        responses=error_responses(*_LOAD_CODES) | ANY_OTHER,
        openapi_extra=_CHANGED,
    )
    @require_access("admin")
    async def unload(request: Request) -> RouterDone:
        await changes.unload_model(await _read_name(request), name_actor(request.scope))
        return RouterDone()


def _declare_downloads(app: FastAPI, changes: RouterChanges) -> None:
    @app.post(
        "/models",
        summary="Download a model, as llama-server's router",
        description="Looks what the reference is, declares a model of that name, which a request loads once its files "
        "are here, begins the download and answers. GET /models/sse tells how far it is. The same again goes on with a "
        "download that was cancelled or has failed.\n\n" + codes_paragraph((*_DOWNLOAD_CODES, *_CHANGE_CODES)),
        tags=["models"],
        responses=error_responses(*_DOWNLOAD_CODES, *_CHANGE_CODES) | ANY_OTHER,
        openapi_extra=_DOWNLOADED,
    )
    @require_access("admin")
    async def download(request: Request) -> RouterDone:
        await changes.download_model(await _read_name(request), name_actor(request.scope))
        return RouterDone()

    @app.delete(
        "/models",
        summary="Delete a model, as llama-server's router",
        description="Takes a model back that was downloaded and declared at run time: ends its download, takes its "
        "declaration back, and removes those of its files that no other model uses. A model that is loaded is refused "
        "(`state_conflict`): unload it first. One that the files declare is refused, too.\n\n"
        + codes_paragraph((*_REMOVE_CODES, *_CHANGE_CODES)),
        tags=["models"],
        responses=error_responses(*_REMOVE_CODES, *_CHANGE_CODES) | ANY_OTHER,
    )
    @require_access("admin")
    async def remove(request: Request, model: _NameQuery) -> RouterDone:
        await changes.remove_model(model, name_actor(request.scope))
        return RouterDone()


async def follow_events(
    log: ModelEventLog, may_see_name: Callable[[str], bool], after: int | None, heartbeat_s: float
) -> AsyncIterator[bytes]:
    """Yield the server-sent events after the one with the id `after` (0: from the first on), and new ones until the log
    is closed.

    Events of models for none of whose names `may_see_name` returns True are left out. Where the log no longer has some
    events, or may lack some (`after` None: an id of another gateway process), one `models_reload` takes their place. A
    comment is yielded at once in the beginning, and after each `heartbeat_s` seconds of silence. Close the iterator if
    it is not read to its end: it listens to the log until then.
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
                if not event.names or any(map(may_see_name, event.names)):
                    yield f"id: {log.write_id(event)}\ndata: {json.dumps(event.describe())}\n\n".encode()
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


def describe_router(live: LiveRoutes) -> dict[str, Any]:
    """Return the answer to GET /props without a model, as values of JSON, for the web page of llama-server's router.

    Raises RoundhouseError `controller_unavailable` before the first routing table.
    """
    names = sorted(live.current.models)
    return {
        "role": "router",
        "max_instances": len(names),
        "models_autoload": any(route.autoload for route in live.current.models.values()),
        "model_alias": "roundhouse",
        "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "ui_settings": {},
        "build_info": "roundhouse",
        "cors_proxy_enabled": False,
    }
