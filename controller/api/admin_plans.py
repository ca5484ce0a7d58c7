"""Routes of the admin API for the plan, the dry run, drift, reading the files again, and engines' command lines."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI
from pydantic import BaseModel, ValidationError

from controller.admin.service import NOT_YET
from controller.api.admin_models import LoadRequest
from controller.api.requests import Actor, error_responses
from controller.assembly import Controller
from controller.config.messages import explain_errors
from controller.engines.load_request import load_params
from controller.schema.admin import CommandLines, Drift, DryRun, ProposedFiles, ProposedLoad, ReloadResult
from controller.schema.errors import RoundhouseError
from controller.schema.status import PlanView

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


def declare(app: FastAPI, controller: Controller) -> None:
    """Add the routes `/v1/admin/plan` (GET and POST), `/v1/admin/drift`, `/v1/admin/reload` and `/v1/admin/commands` to
    `app`."""

    @app.get("/v1/admin/plan", tags=_TAGS, summary="The plan", response_model=PlanView, responses=error_responses())
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
        response_model=DryRun,
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

    @app.get("/v1/admin/drift", tags=_TAGS, summary="Drift", response_model=Drift, responses=error_responses())
    async def drift() -> Drift:
        """What runs differently from what the files declare, since when, and why: runtime statements, replicas of an
        earlier definition, missing ones, engines whose image or command line is not what would be started now."""
        return await controller.find_drift()

    @app.post(
        "/v1/admin/reload",
        tags=_TAGS,
        summary="Read the files",
        response_model=ReloadResult,
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
        response_model=CommandLines,
        responses=error_responses(),
    )
    async def commands() -> CommandLines:
        """The command line of each model's newest engine that runs, secrets masked."""
        return controller.list_command_lines()
