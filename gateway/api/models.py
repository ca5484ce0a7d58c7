"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Request
from pydantic import BaseModel, Field

from controller.schema.admin import Capabilities, Modality
from controller.schema.status import ModelState
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.ingress.route_access import require_access
from gateway.protocols.api_matrix import continues_answers, offered_paths
from gateway.routing.availability import find_model, reason_of
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.model_events import ModelEventLog, ModelView, RouterState, describe_progress, describe_status


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
    state: ModelState = Field(description="State of the model: unloaded, loading, loaded, unloading or failed.")
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


def declare(app: FastAPI, live: LiveRoutes, events: ModelEventLog) -> None:
    """Add `GET /v1/models` and `/v1/models/{name}` to `app`. Call after `benchmarks.declare`.

    The routes show the models of the table in force in `live` that the caller may see, loaded or not, with their
    downloads as `events` knows them. Without a table, the routes answer `controller_unavailable`.
    """
    list_codes = ("scope_required", *INGRESS_CODES)
    model_codes = ("model_not_allowed", "unknown_model", *list_codes)

    @app.get(
        "/v1/models",
        summary="Declared models",
        description="Lists every declared model that the key may use, loaded or not. An alias has no entry of its "
        "own.\n\n" + codes_paragraph(list_codes),
        tags=["models"],
        responses=error_responses(*list_codes),
    )
    @require_access("inference")
    async def list_models(request: Request) -> ModelList:
        models = list_models_seen(request, live, events)
        end_ids = (models[0].id, models[-1].id) if models else (None, None)
        return ModelList(data=models, first_id=end_ids[0], last_id=end_ids[1])

    @app.get(
        "/v1/models/{name:path}",
        summary="One model",
        description=f"The model of that name or alias.\n\n{codes_paragraph(model_codes)}",
        tags=["models"],
        responses=error_responses(*model_codes) | ANY_OTHER,
    )
    @require_access("inference")
    async def get_model(
        request: Request,
        name: Annotated[str, Path(description="Name or alias of the model; it may contain `/` and `:`.")],
    ) -> ModelObject:
        route = find_model(live.current, name)
        request.state.caller.require_model(route)
        return ModelObject.of(events.views.get(route.name, ModelView(route)))


def list_models_seen(request: Request, live: LiveRoutes, events: ModelEventLog) -> list[ModelObject]:
    """Return the models of the table in force that the caller of a request may see, in name order. Raises
    RoundhouseError `controller_unavailable` without a table."""
    live.check_table()
    may_see = request.state.caller.may_see_model
    return [ModelObject.of(view) for view in events.views.values() if may_see(view.route)]
