"""Routes of the admin API for the plan, the dry run, drift, reading the files again, and engines' command lines."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI

from controller.admin.service import NOT_YET
from controller.api.requests import error_responses
from controller.assembly import Controller
from controller.schema.admin import CommandLines, Drift, DryRun, ProposedFiles, ReloadResult
from controller.schema.errors import RoundhouseError
from controller.schema.status import PlanView

_TAGS: list[Any] = ["admin"]


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
        responses=error_responses("invalid_request"),
    )
    async def dry_run(proposed: Annotated[ProposedFiles, Body()]) -> DryRun:
        """What desired-state files would do if they were as proposed: model by model what is different, what would be
        restarted, and what stands in the way. Nothing is changed. Problems of the files are an answer, not an error."""
        return await controller.run_dry_run(proposed)

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
