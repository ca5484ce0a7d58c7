"""Routes of the admin API for runtime declarations of models and keys."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Path, Response
from pydantic import JsonValue

from controller.admin.declaration_service import DeclarationService
from controller.api.requests import Actor, error_responses
from controller.schema.declarations import DeclarationKind, DeclarationsView, DeclarationView

_TAGS: list[Any] = ["admin"]
Kind = Annotated[DeclarationKind, Path(description="What is declared: `models` or `keys`.")]
DeclaredName = Annotated[
    str,
    Path(
        description="Name of the model or key; a model's may contain `/`.",
        examples=["clockwork"],
        min_length=1,
        max_length=400,
    ),
]
Fields = Annotated[
    dict[str, JsonValue],
    Body(
        description="Fields as a desired-state file has them below the name.",
        examples=[{"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096}],
    ),
]
_NEW: dict[int | str, dict[str, Any]] = {201: {"model": DeclarationView, "description": "The declaration is new."}}


def declare(app: FastAPI, service: DeclarationService) -> None:
    """Add the routes `/v1/admin/declarations...` to `app`."""

    @app.get(
        "/v1/admin/declarations",
        tags=_TAGS,
        summary="Runtime declarations",
        response_model=DeclarationsView,
        responses=error_responses(),
    )
    async def list_declarations() -> DeclarationsView:
        """Models and keys that were declared at run time, and are in no file. They are kept over restarts. One that the
        files declare, too, ends by itself."""
        return service.list_declarations()

    @app.get(
        "/v1/admin/declarations/{kind}/{name:path}",
        tags=_TAGS,
        summary="One runtime declaration",
        response_model=DeclarationView,
        responses=error_responses("unknown_declaration"),
    )
    async def get_declaration(kind: Kind, name: DeclaredName) -> DeclarationView:
        """One runtime declaration. What the files declare is not one."""
        return service.get_declaration(kind, name)

    @app.put(
        "/v1/admin/declarations/{kind}/{name:path}",
        tags=_TAGS,
        summary="Declare a model or a key",
        response_model=DeclarationView,
        responses=_NEW | error_responses("invalid_declaration", "declared_in_files"),
    )
    async def put_declaration(kind: Kind, name: DeclaredName, fields: Fields, actor: Actor) -> Response:
        """Declare a model or a key without a file, or change its runtime declaration. It is validated as a file is, and
        rules at once. Fields that run programs, or name files outside the models folders or addresses, are refused
        (docs/security.md). No file is written; `roundhouse declarations export` prints what to commit."""
        view, is_new = service.put_declaration(kind, name, fields, actor=actor)
        return Response(view.model_dump_json(), 201 if is_new else 200, media_type="application/json")

    @app.delete(
        "/v1/admin/declarations/{kind}/{name:path}",
        tags=_TAGS,
        summary="Take a runtime declaration back",
        response_model=DeclarationView,
        responses=error_responses("unknown_declaration"),
    )
    async def drop_declaration(kind: Kind, name: DeclaredName, actor: Actor) -> DeclarationView:
        """Remove a runtime declaration, and answer what it was. The model's running requests finish, then its engines
        end; the key is refused at once."""
        return service.drop_declaration(kind, name, actor=actor)
