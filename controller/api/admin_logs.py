"""Route of the admin API for engines' logs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.responses import StreamingResponse

from controller.admin.log_reader import MOST_LINES, LogReader
from controller.admin.service import AdminService
from controller.api.requests import Name, error_responses
from controller.schema.admin import AdminModel
from controller.schema.errors import RoundhouseError

_TAGS: list[Any] = ["admin"]


def declare(app: FastAPI, service: AdminService, logs: LogReader) -> None:
    """Add the route `/v1/admin/models/{name}/logs` to `app`. Call before `admin_models.declare`, whose route of one
    model would match its paths too."""

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
            if (row := await _row(service, f"{name}/logs")) is None:
                raise
            return Response(row.model_dump_json(), media_type="application/json")
        text = await logs.open_logs(model_name, replica, lines=lines, follow=follow)
        return StreamingResponse(text, media_type="text/plain; charset=utf-8", headers={"cache-control": "no-cache"})


async def _row(service: AdminService, name: str) -> AdminModel | None:
    try:
        return await service.get_model(name)
    except RoundhouseError:
        return None
