"""/v1/retrieval: the state of retrieval, and a reindex. For callers with the scope `admin`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from retrieval.api.requests import Handlers, answer_model, read_caller
from retrieval.schema.status import RetrievalStatus


class StatusRoutes:
    """The handlers of one program."""

    def __init__(
        self, read_status: Callable[[], Awaitable[RetrievalStatus]], start_reindex: Callable[[], None]
    ) -> None:
        """`start_reindex`: starts one in the background; does nothing while one is under way."""
        self._read_status = read_status
        self._start_reindex = start_reindex

    def handlers(self) -> Handlers:
        """Return the handlers of this group."""
        return {("GET", "/v1/retrieval"): self.get_status, ("POST", "/v1/retrieval/reindex"): self.reindex}

    async def get_status(self, request: Request) -> Response:
        """Answer the state."""
        return answer_model(await self._read_status(), read_caller(request))

    async def reindex(self, request: Request) -> Response:
        """Start a reindex."""
        caller = read_caller(request)
        self._start_reindex()
        return answer_model(await self._read_status(), caller, 202)
