"""GET /v1/models and /v1/models/{name}, and GET /models, the list in the form of llama-server's router."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Path, Request
from pydantic import BaseModel, Field

from controller.schema.admin import Capabilities, Modality
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.ingress.route_access import require_access
from gateway.protocols.api_matrix import offered_paths
from gateway.routing.availability import find_model
from gateway.routing.live_routes import LiveRoutes

RouterState = Literal["unloaded", "loading", "loaded"]
_ROUTER_STATES: Final[dict[ModelState, RouterState]] = {
    ModelState.UNLOADED: "unloaded",
    ModelState.LOADING: "loading",
    ModelState.LOADED: "loaded",
    # llama-server's router has no such states. A failed model is unloaded there, with `failed` set.
    ModelState.UNLOADING: "unloaded",
    ModelState.FAILED: "unloaded",
}
"""The state as llama-server's router calls it."""


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
    aliases: list[str] = Field(description="Other names that clients may use for the model.")
    backend: str = Field(description="Backend that serves the model.")
    apis: list[str] = Field(
        description="Paths that accept the model, served by its engine or by translation to another API of its "
        "engine; empty: not known."
    )
    capabilities: Capabilities = Field(
        description="Kinds of requests that the model accepts. The gateway refuses all others."
    )
    modalities: list[Modality] = Field(description="Kinds of input that the model accepts, as in `capabilities`.")
    context_length: int | None = Field(
        description="Maximum tokens of one request, prompt and answer together; null: not known, because the "
        "definition does not set it and no ready engine reports it."
    )

    @classmethod
    def of(cls, route: ModelRoute) -> ModelObject:
        """Return the model object that clients see for `route`. Its `id` is the model's name, never an alias."""
        return cls(**_fields(route))


class ModelList(BaseModel):
    """OpenAI's list of models, and Anthropic's: all of them in one page."""

    object: Literal["list"] = "list"
    data: list[ModelObject] = Field(description="The models, in name order.")
    has_more: Literal[False] = False
    first_id: str | None = Field(description="Id of the first model; null: the list is empty.")
    last_id: str | None = Field(description="Id of the last model; null: the list is empty.")


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


def _fields(route: ModelRoute) -> dict[str, Any]:
    return {
        "id": route.name,
        "created": route.created,
        "display_name": route.name,
        "created_at": datetime.fromtimestamp(route.created, UTC),
        "max_input_tokens": route.context_length,
        "state": route.state,
        "aliases": list(route.aliases),
        "backend": route.backend,
        "apis": offered_paths(route),
        "capabilities": route.capabilities,
        "modalities": list(route.capabilities.modalities),
        "context_length": route.context_length,
    }


def _router_model(route: ModelRoute) -> RouterModel:
    is_failed = route.state is ModelState.FAILED
    fields = _fields(route)
    architecture = RouterArchitecture(input_modalities=fields["modalities"], output_modalities=["text"])
    status = RouterStatus(value=_ROUTER_STATES[route.state], args=[], failed=is_failed)
    return RouterModel(**fields, tags=[], status=status, architecture=architecture)


def declare(app: FastAPI, live: LiveRoutes) -> None:
    """Add `GET /v1/models`, `/v1/models/{name}` and `/models` to `app`. Call after `benchmarks.declare`.

    They show the models of the table in force in `live` that the caller may see, loaded or not. Without a table, they
    answer `controller_unavailable`.
    """
    list_codes = ("scope_required", *INGRESS_CODES)
    model_codes = ("model_not_allowed", "unknown_model", *list_codes)

    def seen(request: Request) -> Iterator[ModelRoute]:
        may_see = request.state.caller.may_see_model
        return (route for route in live.current.models.values() if may_see(route))

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
        models = [ModelObject.of(route) for route in seen(request)]
        end_ids = (models[0].id, models[-1].id) if models else (None, None)
        return ModelList(data=models, first_id=end_ids[0], last_id=end_ids[1])

    @app.get(
        "/models",
        summary="Declared models, as llama-server's router",
        description="Lists the same models in the form of llama-server's router, with `status.value` unloaded, "
        "loading or loaded.\n\n" + codes_paragraph(list_codes),
        tags=["models"],
        responses=error_responses(*list_codes),
    )
    @require_access("inference")
    async def list_for_router(request: Request) -> RouterModelList:
        return RouterModelList(data=[_router_model(route) for route in seen(request)])

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
        return ModelObject.of(route)
