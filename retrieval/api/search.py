"""/v1/search: find chunks of the tenant's documents."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from retrieval.api.requests import Handlers, answer_model, parse_body, read_body, read_caller
from retrieval.metrics import RetrievalMetrics
from retrieval.schema.search import SearchRequest
from retrieval.search.service import SearchService

_MOST_BYTES: Final = 1024 * 1024
_SPACES: Final = ("",)


class SearchRoutes:
    """The handlers of one service."""

    def __init__(self, service: SearchService, metrics: RetrievalMetrics) -> None:
        self._service = service
        self._metrics = metrics

    def handlers(self) -> Handlers:
        """Return the handlers of this group."""
        return {("POST", "/v1/search"): self.search}

    async def search(self, request: Request) -> Response:
        """Answer the hits of a search."""
        caller = read_caller(request)
        wanted = parse_body(SearchRequest, await read_body(request, _MOST_BYTES))
        began = time.perf_counter()
        result = await self._service.search(caller.tenant, _SPACES, wanted)
        self._metrics.record_search(result, time.perf_counter() - began)
        return answer_model(result, caller)
