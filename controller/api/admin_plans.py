"""Routes of the admin API for what is declared at run time, the plan, the dry run, drift, reading the files again, and
engines' command lines.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Path, Query, Response
from pydantic import BaseModel, JsonValue, ValidationError

from contract.admin import CommandLines, Drift, DryRun, ProposedFiles, ProposedLoad, ReloadResult
from contract.declarations import DeclarationKind, DeclarationsView, DeclarationView
from contract.errors import RoundhouseError
from contract.status import PlanView
from controller.admin.override_rules import load_params
from controller.admin.service import NOT_YET, DeclarationService
from controller.api.admin_models import LoadRequest
from controller.api.requests import Actor, error_responses
from controller.assembly import Controller
from controller.config.messages import explain_errors

_TAGS: list[Any] = ["admin"]


def _read_load(load: ProposedLoad) -> BaseModel:
    """Return the body of a load. Raises RoundhouseError `invalid_load_request` for what the route of a load refuses."""
    try:
        return LoadRequest.model_validate(load.values)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        field = ".".join(map(str, first_error["loc"]))
        message = f"`{field}` {explain_errors(first_error)}."
        raise RoundhouseError("invalid_load_request", message, param=field) from None


def declare_plans(app: FastAPI, controller: Controller) -> None:
    """Add the routes `/v1/admin/plan` (GET and POST), `/v1/admin/drift`, `/v1/admin/reload` and `/v1/admin/commands` to
    `app`."""

    @app.get("/v1/admin/plan", tags=_TAGS, summary="The plan", responses=error_responses())
    async def plan() -> PlanView:
        """What the controller would do now, each step with its reason, and what is wanted and cannot be done. A
        controller that is not paused acts at once, so that the plan is mostly empty."""
        view = controller.get_plan()
        if view is None:
            raise RoundhouseError("controller_unavailable", NOT_YET)
        return view

    @app.post(
        "/v1/admin/plan",
        tags=_TAGS,
        summary="Dry run",
        responses=error_responses(
            "invalid_request", "declared_in_files", "invalid_load_request", "unknown_model", "state_conflict"
        ),
    )
    async def dry_run(proposed: Annotated[ProposedFiles, Body()], actor: Actor) -> DryRun:
        """Return what the proposed desired-state files, declarations at run time and loads would change: for each model
        what is different, what would be restarted, and what stands in the way. Nothing is changed. Problems of files
        and declarations are an answer, not an error; a load that would be refused is refused here."""
        service, loads = controller.admin_service, []
        for name, load in proposed.loads.items():
            body = _read_load(load)
            loads.append(
                service.propose_load(
                    name, load_params(body), getattr(body, "replicas", None), restart=load.restart, actor=actor
                )
            )
        return await controller.run_dry_run(proposed, [each for each in loads if each is not None])

    @app.get("/v1/admin/drift", tags=_TAGS, summary="Drift", responses=error_responses())
    async def drift() -> Drift:
        """What runs differently from what the files declare, since when, and why: runtime statements, replicas of an
        earlier definition, missing ones, engines whose image or command line is not what would be started now."""
        return await controller.find_drift()

    @app.post(
        "/v1/admin/reload",
        tags=_TAGS,
        summary="Read the files",
        responses=error_responses(),
    )
    async def reload() -> ReloadResult:
        """Read the desired-state files at once. Nobody needs to: an edit is seen within seconds. Models whose
        definition is unchanged go on. Problems of the files are an answer, not an error. The removal of a model is
        confirmed by a second reading, two seconds later, before the answer comes."""
        return await controller.admin_service.reload_files()

    @app.get(
        "/v1/admin/commands",
        tags=_TAGS,
        summary="Command lines",
        responses=error_responses(),
    )
    async def commands() -> CommandLines:
        """The command line of each model's newest engine that runs, secrets masked."""
        return controller.list_command_lines()


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


def declare_declarations(app: FastAPI, service: DeclarationService) -> None:
    """Add the routes `/v1/admin/declarations...` to `app`."""

    @app.get(
        "/v1/admin/declarations",
        tags=_TAGS,
        summary="Runtime declarations",
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
        responses=error_responses("unknown_declaration", "last_key"),
    )
    async def drop_declaration(
        kind: Kind,
        name: DeclaredName,
        actor: Actor,
        last: Annotated[
            bool, Query(description="Remove also the last key, after which everybody may use the gateway.")
        ] = False,
    ) -> DeclarationView:
        """Remove a runtime declaration, and answer what it was. The model's running requests finish, then its engines
        end; the key is refused at once."""
        return service.drop_declaration(kind, name, actor=actor, even_last=last)
