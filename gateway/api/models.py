"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel

from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.api.declare import ERRORS
from gateway.live_routes import LiveRoutes
from gateway.readiness import find


class ModelObject(BaseModel):
    """OpenAI's model object, and below it what is Roundhouse's own."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "roundhouse"
    state: ModelState
    aliases: list[str]
    backend: str
    apis: list[str]

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

    object: str = "list"
    data: list[ModelObject]


def declare(app: FastAPI, live: LiveRoutes) -> None:
    """Declare the routes."""

    @app.get("/v1/models", summary="Declared models", responses=ERRORS)
    async def list_models() -> ModelList:
        """Every declared model, loaded or not. An alias is no entry of its own."""
        return ModelList(data=[ModelObject.of(route) for route in live.current.models.values()])

    @app.get("/v1/models/{name:path}", summary="One model", responses=ERRORS)
    async def get_model(name: str) -> ModelObject:
        """The model of that name or alias."""
        return ModelObject.of(find(live.current, name))
