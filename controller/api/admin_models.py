"""Routes of the admin API for models: rows, loads and unloads (seed 001), resets, and engines' logs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from contract.admin import AdminModel, AdminModels, GpuMemoryAnswer, UnloadRequest
from contract.errors import RoundhouseError
from controller.admin.override_rules import load_params, load_request_model
from controller.admin.service import MOST_LINES, AdminService, LogReader
from controller.api.examples import GPU_MEMORY, MODELS, ROW, example_response
from controller.api.requests import Actor, Name, error_responses
from controller.engines.options import LoadValue

LONGEST_WAIT_S = 3600.0
"""Maximum of the query parameter `timeout_s`, in seconds."""
LoadRequest: type[BaseModel] = load_request_model()
PLAIN_LOAD, PLAIN_UNLOAD = LoadRequest(), UnloadRequest()
"""Defaults for requests without a body. With a default instead of None, the OpenAPI document neither requires a body
nor allows null."""

Wait = Annotated[
    bool,
    Query(description="true: answer when the operation is done, or after `timeout_s` seconds. false: answer at once."),
]
Timeout = Annotated[
    float,
    Query(
        gt=0,
        le=LONGEST_WAIT_S,
        allow_inf_nan=False,
        description="Maximum seconds to wait. After that the answer has status 202.",
    ),
]
STATES = (
    "Runtime states: `unloaded` (known, nothing runs; may be loaded), `loading`, `loaded` (serves), `unloading` (takes "
    "nothing new, running requests finish), `failed` (the last load failed, see `last_error`; may be loaded again)."
)
_LATER: dict[int | str, dict[str, Any]] = {
    202: {
        "model": AdminModel,
        "description": "The operation is not done yet and continues. The body is the model's row as it is now.",
    }
}
Restart = Annotated[
    bool,
    Query(
        description="true: accept values also while the model is loaded or loading. Its engines are replaced one at "
        "a time, without a pause if memory allows an old and a new engine at the same time. `wait` then waits until "
        "every replica has the new values."
    ),
]
_TAGS: list[Any] = ["admin"]


def declare_models(app: FastAPI, service: AdminService) -> None:
    """Add the routes `/v1/admin/models...` and `/v1/admin/gpu-memory` to `app`. Call it after every other function that
    adds routes below `/v1/admin/models`: the route of one model matches their paths too."""

    @app.get(
        "/v1/admin/models",
        tags=_TAGS,
        summary="All models",
        description=f"Every declared model with its configuration and its live state. {STATES}",
        response_model=AdminModels,
        responses=example_response(MODELS) | error_responses(),
    )
    async def list_models() -> Response:
        return Response(await service.list_models_json(), media_type="application/json")

    @app.get(
        "/v1/admin/gpu-memory",
        tags=_TAGS,
        summary="GPU memory",
        response_model=GpuMemoryAnswer,
        responses=example_response(GPU_MEMORY) | error_responses(),
    )
    async def gpu_memory() -> Response:
        """GPU memory in use now, and the estimated memory of each model. An estimate reserves nothing. Without a GPU,
        `gpus` is empty and `error` says why."""
        return _json(await service.get_gpu_memory())

    _declare_statements(app, service)

    # After the routes with longer paths, because a name may contain `/`.
    @app.get(
        "/v1/admin/models/{name:path}",
        tags=_TAGS,
        summary="One model",
        response_model=AdminModel,
        responses=example_response(ROW) | error_responses("unknown_model"),
    )
    async def get_model(name: Name) -> Response:
        """One model's row, as the list has it."""
        return _json(await service.get_model(name))


def _declare_statements(app: FastAPI, service: AdminService) -> None:
    @app.post(
        "/v1/admin/models/{name:path}/load",
        tags=_TAGS,
        summary="Load a model",
        response_model=AdminModel,
        responses=example_response(ROW)
        | _LATER
        | error_responses("invalid_load_request", "unknown_model", "state_conflict", "model_failed"),
    )
    async def load(
        name: Name,
        actor: Actor,
        body: Annotated[LoadRequest, Body()] = PLAIN_LOAD,  # type: ignore[valid-type]
        wait: Wait = True,
        timeout_s: Timeout = 600.0,
        restart: Restart = False,
    ) -> Response:
        """Load a declared model, also one with `enabled: false`. The body may set the number of replicas, and
        parameters of its backend for this load only (see `load_constraints`); they are kept until the next unload and
        never written to the files. Values are accepted only while the model is unloaded or failed, or with `restart`. A
        load of a model that is loaded or loading answers with its current row. The load goes on when its client
        leaves."""
        model_name = service.resolve_name(name)
        params: dict[str, LoadValue] = load_params(body)
        replicas = getattr(body, "replicas", None)
        result = service.load_model(model_name, params, replicas, restart=restart, actor=actor)
        model, is_done = await service.wait_for_load(model_name, result, timeout_s if wait else 0.0, restart=restart)
        return _row(model, is_done or not result.is_new)

    @app.post(
        "/v1/admin/models/{name:path}/unload",
        tags=_TAGS,
        summary="Unload a model",
        response_model=AdminModel,
        responses=example_response(ROW) | _LATER | error_responses("unknown_model", "state_conflict"),
    )
    async def unload(
        name: Name,
        actor: Actor,
        body: Annotated[UnloadRequest, Body()] = PLAIN_UNLOAD,
        wait: Wait = True,
        timeout_s: Timeout = 600.0,
    ) -> Response:
        """Unload a model: new requests are refused, waiting ones are cancelled, running ones finish, then its engines
        end. No request is killed, however long it takes: `held_by` names the requests that are still running. A load
        that is under way is cancelled. The model stays unloaded until the next load, or until the files say
        otherwise."""
        model_name = service.resolve_name(name)
        result = service.unload_model(model_name, hold=body.hold, actor=actor)
        model, is_done = await service.wait_for_unload(model_name, result, timeout_s if wait else 0.0)
        return _row(model, is_done or not result.is_new)

    @app.delete(
        "/v1/admin/models/{name:path}/override",
        tags=_TAGS,
        summary="Reset a model to the files",
        response_model=AdminModel,
        responses=example_response(ROW) | error_responses("unknown_model"),
    )
    async def reset(name: Name, actor: Actor) -> Response:
        """Drop the operator's load or unload: the model runs again as the files declare it. Answers at once."""
        model_name = service.resolve_name(name)
        service.reset_model(model_name, actor=actor)
        return _json(await service.get_model(model_name))


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _row(model: AdminModel, is_done: bool) -> Response:
    """Answer with 200 where the request is done or was already under way (seed 001), with 202 where the caller began
    something that is not done yet."""
    return Response(model.model_dump_json(), 200 if is_done else 202, media_type="application/json")


def declare_logs(app: FastAPI, service: AdminService, logs: LogReader) -> None:
    """Add the route `/v1/admin/models/{name}/logs` to `app`. Call it before `declare_models`, whose route of one model
    matches its paths too."""

    @app.get(
        "/v1/admin/models/{name:path}/logs",
        tags=_TAGS,
        summary="Engines' logs",
        response_class=StreamingResponse,
        responses={
            200: {"description": "Lines of text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
            **error_responses("unknown_model", "unknown_replica"),
        },
    )
    async def model_logs(
        name: Name,
        replica: Annotated[
            str | None,
            Query(
                description="Return only the log of this replica. The model's row contains the names.", max_length=200
            ),
        ] = None,
        lines: Annotated[int, Query(ge=0, le=MOST_LINES, description="Number of last lines of each replica.")] = 100,
        follow: Annotated[
            bool, Query(description="true: continue with new lines until the client disconnects.")
        ] = False,
    ) -> Response:
        """Log lines of the model's engines: of its running replicas, or, where none runs, of the last one that ended.
        With several replicas each line begins with its replica's name. Secrets of the definition are masked."""
        try:
            model_name = service.resolve_name(name)
        except RoundhouseError:
            # A name may contain `/`: then this is the path of the row of a model whose name ends with `/logs`.
            if (row := await _find_row(service, f"{name}/logs")) is None:
                raise
            return Response(row.model_dump_json(), media_type="application/json")
        text = await logs.open_logs(model_name, replica, lines=lines, follow=follow)
        return StreamingResponse(text, media_type="text/plain; charset=utf-8", headers={"cache-control": "no-cache"})


async def _find_row(service: AdminService, name: str) -> AdminModel | None:
    try:
        return await service.get_model(name)
    except RoundhouseError:
        return None
