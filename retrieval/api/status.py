"""/v1/retrieval: the state of retrieval, a reindex, and an operator's word on the clock. For callers with the scope
`admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from retrieval.api.requests import Handlers, answer_model, read_caller
from retrieval.schema.status import RetrievalStatus


class StatusRoutes:
    """The handlers of `/v1/retrieval`. The gateway lets only callers with the scope `admin` through; nothing is checked
    here. Every handler raises RoundhouseError `invalid_request` for a request that names no tenant."""

    def __init__(
        self,
        read_status: Callable[[], Awaitable[RetrievalStatus]],
        start_reindex: Callable[[], None],
        confirm_clock: Callable[[], object],
    ) -> None:
        """`read_status` is called for each answer. `start_reindex` asks for a reindex in the background, and returns at
        once. `confirm_clock` is called in a thread."""
        self._read_status = read_status
        self._start_reindex = start_reindex
        self._confirm_clock = confirm_clock

    def handlers(self) -> Handlers:
        """Return the handlers of this group by (method, path), for `create_app`."""
        return {
            ("GET", "/v1/retrieval"): self.get_status,
            ("POST", "/v1/retrieval/reindex"): self.reindex,
            ("POST", "/v1/retrieval/clock/confirm"): self.confirm_clock,
        }

    async def get_status(self, request: Request) -> Response:
        """Answer which index serves, which is being built, and the number of versions by state. Raises sqlite3.Error if
        the catalog fails."""
        return answer_model(await self._read_status(), read_caller(request))

    async def reindex(self, request: Request) -> Response:
        """Ask for a reindex in the background, and answer the state with status 202. The state may not show the reindex
        yet; a failure is in `reindex_error` of later answers. If a reindex is running, another one follows it. Raises
        sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        self._start_reindex()
        return answer_model(await self._read_status(), caller, 202)

    async def confirm_clock(self, request: Request) -> Response:
        """Believe the wall clock as it is, and answer the state. Raises sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        await asyncio.to_thread(self._confirm_clock)
        return answer_model(await self._read_status(), caller)
