"""The models that clients see: `GET /v1/models` and `/v1/models/{name}`; and the routes of llama-server's router mode,
`/models` and those below it.

llama-server's README (tools/server, "Using multiple models") describes the latter; docs/router.md says what differs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import Header, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from contract.admin import Capabilities, Modality
from contract.route_spec import RouteSpec
from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.api.declare import ADMIN_SCOPE_CODES, HttpRoutes, RequestBody, Rule
from gateway.api.forwarding import name_actor
from gateway.control.admin_requests import RouterChanges
from gateway.ingress.access_rules import AdminGate
from gateway.protocols.api_matrix import continues_answers, offered_paths
from gateway.routing.availability import find_model, reason_of
from gateway.routing.model_events import (
    ALL_MODELS,
    ModelEvent,
    ModelEventLog,
    ModelView,
    RouterState,
    describe_progress,
    describe_status,
)
from gateway.routing.table import LiveRoutes
from gateway.server.asgi import local_address_of
from gateway.server.request_head import ROUTER_PROPS_PATH

_route = partial(RouteSpec, tag="models")


class RouterStatus(BaseModel):
    """A model's state in the words of llama-server's router."""

    value: RouterState
    args: list[str] = Field(
        default_factory=list,
        description="Command line of the model's engine, secrets masked, where GET /models is asked with the scope "
        "`admin`; else empty.",
    )
    failed: bool = Field(default=False, description="Whether the last load of the model failed.")
    exit_code: int | None = Field(
        default=None,
        description="Exit code of the engine whose load failed; 1 if none ended. null: no load failed.",
    )
    progress: dict[str, Any] | None = Field(
        default=None,
        description="While loading: `stages`, `current` and `value`, from 0 to 1. While downloading: `done` and "
        "`total` in bytes, by file. null: neither, or not known.",
    )


class RouterArchitecture(BaseModel):
    """Kinds of input that a model accepts and of output that it makes, as llama-server's router lists them."""

    input_modalities: list[Modality]
    output_modalities: tuple[Literal["text"]] = ("text",)


class ModelObject(BaseModel):
    """OpenAI's model object with Anthropic's fields, followed by Roundhouse's own."""

    id: str = Field(description="Name of the model.")
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time in seconds at which the model was declared.")
    owned_by: Literal["roundhouse"] = "roundhouse"
    type: Literal["model"] = "model"
    display_name: str = Field(description="Name of the model.")
    created_at: datetime = Field(description="The time in `created`, as ISO 8601.")
    max_input_tokens: int | None = Field(description="Equal to `context_length`.")
    state: ModelState = Field(
        description="State of the model: unloaded, sleeping, loading, loaded, unloading or failed."
    )
    reason: str | None = Field(
        description="Why the model is not loaded, without addresses and paths; null: it is, or no reason is known."
    )
    autoload: bool = Field(description="Whether a request loads the model, if it is not loaded.")
    aliases: list[str] = Field(description="Other names that clients may use for the model.")
    backend: str = Field(description="Backend that serves the model.")
    apis: list[str] = Field(
        description="Paths that accept the model, served by its engine or by translation to another API of its "
        "engine; empty: not known."
    )
    capabilities: Capabilities = Field(
        description="Kinds of requests that the model accepts. The gateway refuses all others."
    )
    continues_answers: bool = Field(
        description="Whether a response or message whose input ends with a text of the model continues that text. "
        "false: the model answers anew, the request is refused, or that is not known."
    )
    modalities: list[Modality] = Field(description="Kinds of input that the model accepts, as in `capabilities`.")
    context_length: int | None = Field(
        description="Maximum tokens of one request, prompt and answer together; null: not known, because the "
        "definition does not set it and no ready engine reports it."
    )
    status: RouterStatus = Field(description="State of the model, as llama-server's router lists it.")
    architecture: RouterArchitecture = Field(description="Modalities, as llama-server's router lists them.")
    tags: list[str] = Field(default_factory=list, description="Always empty.")
    can_remove: bool = Field(
        description="Whether DELETE /models takes the model back: it was declared at run time, and has a source."
    )

    @classmethod
    def of(cls, view: ModelView) -> ModelObject:
        """Return the model object that clients see for a model. Its `id` is the model's name, never an alias."""
        return cls(**model_fields(view))


class ModelList(BaseModel):
    """OpenAI's list of models, and Anthropic's: all of them in one page."""

    object: Literal["list"] = "list"
    data: list[ModelObject] = Field(description="The models, in name order.")
    has_more: Literal[False] = False
    first_id: str | None = Field(description="Id of the first model; null: the list is empty.")
    last_id: str | None = Field(description="Id of the last model; null: the list is empty.")
    default_model: str | None = Field(
        description="Name of the model that `ROUNDHOUSE_DEFAULT_MODEL` says; null: none, or the key may not use it."
    )


def router_status(view: ModelView) -> RouterStatus:
    """Return the model's state as llama-server's router lists it (`describe_status`), without the engine's command
    line. While the model's files are being downloaded, `progress` has the bytes of each file."""
    told = describe_status(view)
    download = view.running_download
    if told["status"] == "downloading" and download is not None:
        return RouterStatus(value="downloading", progress=describe_progress(download))
    fields = {name: told[name] for name in ("failed", "exit_code", "progress") if name in told}
    return RouterStatus(value=told["status"], **fields)


def model_fields(view: ModelView) -> dict[str, Any]:
    """Return the values of those fields of a `ModelObject` that differ between models, by field name, for its
    constructor; the values of the others are its defaults."""
    route = view.route
    return {
        "id": route.name,
        "created": route.created,
        "display_name": route.name,
        "created_at": datetime.fromtimestamp(route.created, UTC),
        "max_input_tokens": route.context_length,
        "state": route.state,
        "reason": reason_of(route),
        "autoload": route.autoload,
        "aliases": list(route.aliases),
        "backend": route.backend,
        "apis": offered_paths(route),
        "capabilities": route.capabilities,
        "continues_answers": continues_answers(route),
        "modalities": list(route.capabilities.modalities),
        "context_length": route.context_length,
        "status": router_status(view),
        "architecture": RouterArchitecture(input_modalities=list(route.capabilities.modalities)),
        "can_remove": route.source is not None and route.is_runtime_declared,
    }


def declare_models(
    routes: HttpRoutes, live: LiveRoutes, events: ModelEventLog, *, default_model: str | None = None
) -> None:
    """Add `GET /v1/models` and `/v1/models/{name}`. Call after `readiness.declare_benchmarks`.

    The routes show the models of the table in force in `live` that the caller may see, loaded or not, with their
    downloads as `events` knows them. Without a table, the routes answer `controller_unavailable`.

    `default_model`: name or alias of the model that the list calls the default one; None: there is none.
    """

    @routes.add(_route("GET", "/v1/models", "Declared models", answer=ModelList))
    async def list_models(request: Request) -> ModelList:
        """Lists every declared model that the key may use, loaded or not. An alias has no entry of its own."""
        models = list_models_seen(request, live, events)
        end_ids = (models[0].id, models[-1].id) if models else (None, None)
        default = next((each.id for each in models if default_model in (each.id, *each.aliases)), None)
        return ModelList(data=models, first_id=end_ids[0], last_id=end_ids[1], default_model=default)

    @routes.add(
        _route(
            "GET",
            "/v1/models/{name:path}",
            "One model",
            answer=ModelObject,
            codes=("model_not_allowed", "unknown_model"),
        )
    )
    async def get_model(
        request: Request,
        name: Annotated[str, Path(description="Name or alias of the model; it may contain `/` and `:`.")],
    ) -> ModelObject:
        """The model of that name or alias."""
        route = find_model(live.current, name)
        request.state.caller.require_model(route)
        return ModelObject.of(events.views.get(route.name, ModelView(route)))


def list_models_seen(request: Request, live: LiveRoutes, events: ModelEventLog) -> list[ModelObject]:
    """Return the models of the table in force that the caller of a request may see, in name order. Raises
    RoundhouseError `controller_unavailable` without a table."""
    live.check_table()
    may_see = request.state.caller.may_see_model
    return [ModelObject.of(view) for view in events.views.values() if may_see(view.route)]


_CHANGE_CODES: Final = ("unknown_model", "state_conflict")
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
_NameQuery = Annotated[str, Query(description="Name or alias of the model.", min_length=1, max_length=_LONGEST_NAME)]


_ModelName = Annotated[
    str, Field(min_length=1, max_length=_LONGEST_NAME), Rule(f"must be a text of 1 to {_LONGEST_NAME} characters")
]


class NamedModel(RequestBody):
    """Body that names a model."""

    model: _ModelName = Field(description="Name or alias of the model.")


class WantedModel(RequestBody):
    """Body that names what to download."""

    model: _ModelName = Field(
        description="What to download, such as `ggml-org/gemma-3-4b-it-GGUF:Q4_K_M`: a reference of "
        "docs/transfers.md. It is the model's name, too."
    )


class RouterModelList(BaseModel):
    """The list of llama-server's router."""

    object: Literal["list"] = "list"
    data: list[ModelObject] = Field(description="The models, in name order.")


class RouterDone(BaseModel):
    """Answer to a change that has begun, or was not needed."""

    success: Literal[True] = True


def declare_router(
    routes: HttpRoutes,
    live: LiveRoutes,
    events: ModelEventLog,
    changes: RouterChanges,
    gate: AdminGate,
    *,
    heartbeat_s: float,
) -> None:
    """Add the routes of llama-server's router mode, `/models` and those below it.

    `events` must follow the tables of `live`. `gate` says who may have the files read anew and sees the engines'
    command lines; the routes that change something require the access `admin`.

    `heartbeat_s`: seconds of silence before a comment is sent in an event stream.
    """
    _declare_lists(routes, live, events, changes, gate)
    _declare_events(routes, live, events, heartbeat_s)
    _declare_loads(routes, changes)
    _declare_downloads(routes, changes)


def _declare_lists(
    routes: HttpRoutes, live: LiveRoutes, events: ModelEventLog, changes: RouterChanges, gate: AdminGate
) -> None:
    @routes.add(
        _route(
            "GET",
            "/models",
            "Declared models, as llama-server's router",
            answer=RouterModelList,
            codes=ADMIN_SCOPE_CODES,
        )
    )
    async def list_for_router(
        request: Request,
        reload: Annotated[
            str, Query(description="Any value: read the files first. Needs the scope `admin`.", max_length=100)
        ] = "",
    ) -> RouterModelList:
        """Lists the same models as GET /v1/models. With the scope `admin`, `status.args` is the engine's command line,
        and `reload` reads the desired-state files first; models whose definition is unchanged go on."""
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


def _declare_events(routes: HttpRoutes, live: LiveRoutes, events: ModelEventLog, heartbeat_s: float) -> None:
    @routes.add(_route("GET", ROUTER_PROPS, "Properties of the router", answer=dict[str, Any]))
    async def props(request: Request) -> dict[str, Any]:
        """Return the router's own properties, as llama-server's router does for `GET /props` without `model`. Only
        models that the caller may see are counted."""
        return describe_router(live, request.state.caller.may_see_model)

    @routes.add(
        _route("GET", "/models/sse", "Events of models, as llama-server's router"),
        responses=_EVENT_STREAM,
        response_class=StreamingResponse,
    )
    async def follow(request: Request, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
        """Server-sent events from now on, or after `Last-Event-ID`: `model_status`, `model_remove`, `models_reload`,
        `download_progress`, `download_finished`, `download_failed`. After events that are not kept any more comes
        `models_reload`: list the models anew."""
        live.check_table()
        after = events.last_id if last_event_id is None else events.read_id(last_event_id)
        stream = follow_events(events, request.state.caller.may_see_name, after, heartbeat_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _declare_loads(routes: HttpRoutes, changes: RouterChanges) -> None:
    @routes.add(
        _route(
            "POST",
            "/models/load",
            "Load a model, as llama-server's router",
            answer=RouterDone,
            body=NamedModel,
            codes=_LOAD_CODES,
            access="admin",
        ),
        max_body_bytes=MAX_BODY_BYTES,
    )
    async def load(request: Request, body: NamedModel) -> RouterDone:
        """Begins to load a model and answers at once. The admin API can wait, and set values."""
        await changes.load_model(body.model, name_actor(request.scope))
        return RouterDone()

    @routes.add(
        _route(
            "POST",
            "/models/unload",
            "Unload a model, as llama-server's router",
            answer=RouterDone,
            body=NamedModel,
            codes=_LOAD_CODES,
            access="admin",
        ),
        max_body_bytes=MAX_BODY_BYTES,
    )
    async def unload(request: Request, body: NamedModel) -> RouterDone:
        """Begins to unload a model and answers at once: running requests finish. As in llama-server, the next request
        loads an `autoload` model again, and a download of the model's files is cancelled."""
        await changes.unload_model(body.model, name_actor(request.scope))
        return RouterDone()


def _declare_downloads(routes: HttpRoutes, changes: RouterChanges) -> None:
    @routes.add(
        _route(
            "POST",
            "/models",
            "Download a model, as llama-server's router",
            answer=RouterDone,
            body=WantedModel,
            codes=(*_DOWNLOAD_CODES, *_CHANGE_CODES),
            access="admin",
        ),
        max_body_bytes=MAX_BODY_BYTES,
    )
    async def download(request: Request, body: WantedModel) -> RouterDone:
        """Looks what the reference is, declares a model of that name, which a request loads once its files are here,
        begins the download and answers. GET /models/sse tells how far it is. The same again goes on with a download
        that was cancelled or has failed."""
        await changes.download_model(body.model, name_actor(request.scope))
        return RouterDone()

    @routes.add(
        _route(
            "DELETE",
            "/models",
            "Delete a model, as llama-server's router",
            answer=RouterDone,
            codes=(*_REMOVE_CODES, *_CHANGE_CODES),
            access="admin",
        )
    )
    async def remove(request: Request, model: _NameQuery) -> RouterDone:
        """Takes a model back that was downloaded and declared at run time: ends its download, takes its declaration
        back, and removes those of its files that no other model uses. A model that is loaded is refused
        (`state_conflict`): unload it first. One that the files declare is refused, too."""
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


def describe_router(live: LiveRoutes, may_see_model: Callable[[ModelRoute], bool]) -> dict[str, Any]:
    """Return the answer to GET /props without a model, as values of JSON, for the web page of llama-server's router: of
    the models for which `may_see_model` returns True.

    Raises RoundhouseError `controller_unavailable` before the first routing table.
    """
    models = [route for route in live.current.models.values() if may_see_model(route)]
    return {
        "role": "router",
        "max_instances": len(models),
        "models_autoload": any(route.autoload for route in models),
        "model_alias": "roundhouse",
        "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "ui_settings": {},
        "build_info": "roundhouse",
        "cors_proxy_enabled": False,
    }
