"""/v1/search: find chunks of the tenant's documents."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from retrieval.api.requests import Handlers, answer_model, parse_body, read_body, read_caller
from retrieval.schema.search import SearchRequest
from retrieval.search.service import SearchService

_MOST_BYTES: Final = 1024 * 1024
_SPACES: Final = ("",)


class SearchRoutes:
    """The handlers of one service."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def handlers(self) -> Handlers:
        """Return the handlers of this group."""
        return {("POST", "/v1/search"): self.search}

    async def search(self, request: Request) -> Response:
        """Answer the hits of a search."""
        caller = read_caller(request)
        wanted = parse_body(SearchRequest, await read_body(request, _MOST_BYTES))
        return answer_model(await self._service.search(caller.tenant, _SPACES, wanted), caller)
