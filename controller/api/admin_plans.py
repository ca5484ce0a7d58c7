"""Routes of the admin API for the plan, the dry run and drift."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI

from controller.admin.service import NOT_YET
from controller.api.requests import error_responses
from controller.assembly import Controller
from controller.schema.admin import Drift, DryRun, ProposedFiles
from controller.schema.errors import RoundhouseError
from controller.schema.status import PlanView

_TAGS: list[Any] = ["admin"]


def declare(app: FastAPI, controller: Controller) -> None:
    """Add the routes `/v1/admin/plan` (GET and POST) and `/v1/admin/drift` to `app`."""

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
