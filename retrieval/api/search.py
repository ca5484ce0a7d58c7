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
    """The handler of `/v1/search`, over one SearchService. Answered searches are recorded in the metrics."""

    def __init__(self, service: SearchService, metrics: RetrievalMetrics) -> None:
        self._service = service
        self._metrics = metrics

    def handlers(self) -> Handlers:
        """Return the one handler by (method, path), for `create_app`."""
        return {("POST", "/v1/search"): self.search}

    async def search(self, request: Request) -> Response:
        """Answer the hits of a search over the tenant's own documents, without those of vector stores.

        Raises RoundhouseError `body_too_large` above 1 MiB, `invalid_json`, `invalid_request`, and what
        `SearchService.search` raises (sqlite3.Error, too); ClientDisconnect if the client leaves while it sends the
        body. An answered search is recorded in the metrics.
        """
        caller = read_caller(request)
        wanted = parse_body(SearchRequest, await read_body(request, _MOST_BYTES))
        began = time.perf_counter()
        result = await self._service.search(caller.tenant, _SPACES, wanted)
        self._metrics.record_search(result, time.perf_counter() - began)
        return answer_model(result, caller)
