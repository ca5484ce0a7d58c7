"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Path, Request
from pydantic import BaseModel, Field

from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.api.declare import ANY_OTHER, GATE, errors, listed
from gateway.live_routes import LiveRoutes
from gateway.readiness import find


class ModelObject(BaseModel):
    """OpenAI's model object, and below it what is Roundhouse's own."""

    id: str = Field(description="Its own name.")
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time in seconds at which it was declared.")
    owned_by: Literal["roundhouse"] = "roundhouse"
    state: ModelState = Field(description="unloaded, loading, loaded, unloading or failed.")
    aliases: list[str] = Field(description="Other names for it.")
    backend: str = Field(description="What serves it.")
    apis: list[str] = Field(description="Paths that its engine offers; empty: not known.")

    @classmethod
    def of(cls, route: ModelRoute) -> ModelObject:
        """What clients see of `route`."""
        return cls(
            id=route.name,
            created=route.created,
            state=route.state,
            aliases=list(route.aliases),
            backend=route.backend,
            apis=list(route.apis),
        )


class ModelList(BaseModel):
    """OpenAI's list of models."""

    object: Literal["list"] = "list"
    data: list[ModelObject] = Field(description="In name order.")


def declare(app: FastAPI, live: LiveRoutes) -> None:
    """Declare the routes."""
    of_all = ("scope_required", *GATE)
    of_one = ("model_not_allowed", "unknown_model", *of_all)

    @app.get(
        "/v1/models",
        summary="Declared models",
        description="Every declared model that the key is for, loaded or not. An alias is no entry of its own.\n\n"
        + listed(of_all),
        tags=["models"],
        responses=errors(*of_all),
    )
    async def list_models(request: Request) -> ModelList:
        sees = request.state.caller.sees
        return ModelList(data=[ModelObject.of(route) for route in live.current.models.values() if sees(route)])

    @app.get(
        "/v1/models/{name:path}",
        summary="One model",
        description=f"The model of that name or alias.\n\n{listed(of_one)}",
        tags=["models"],
        responses=errors(*of_one) | ANY_OTHER,
    )
    async def get_model(
        request: Request, name: Annotated[str, Path(description="May hold `/` and `:`.")]
    ) -> ModelObject:
        route = find(live.current, name)
        request.state.caller.may_use(route)
        return ModelObject.of(route)
