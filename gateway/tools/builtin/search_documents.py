"""`search_documents`: passages of the documents of the caller's tenant, as `/v1/search` finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.tools.spec import ToolCall, ToolResult, ToolSpec
from retrieval.schema.search import SearchHit, SearchRequest, SearchResult

MOST_HITS: Final = 20
USUAL_HITS: Final = 5
LONGEST_QUERY: Final = 4096

SPEC: Final = ToolSpec(
    name="search_documents",
    display_name="Search documents",
    description="Searches the user's documents, and returns the passages that fit best, each with its file and place.",
    parameters={
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_QUERY,
                "description": "What is looked for, in words or as a question.",
            },
            "top_k": {
                "type": "integer",
                "minimum": 1,
                "maximum": MOST_HITS,
                "description": f"Number of passages; default: {USUAL_HITS}.",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    writes=False,
    server=None,
)

Search = Callable[[str, SearchRequest, str], Awaitable[SearchResult]]
"""Searches the documents of a tenant (first) for a request (its id last). May raise RoundhouseError."""


class SearchDocuments:
    """Asks the retrieval program for documents of the call's `document_tenant`."""

    spec = SPEC

    def __init__(self, search: Search) -> None:
        self._search = search

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the passages, best first, numbered from 1, each with its file and place; a sentence where none fits.

        Raises:
            RoundhouseError: `retrieval_disabled`, `retrieval_unavailable`, or another error that retrieval answers.
        """
        request = SearchRequest.model_validate(
            {"query": call.arguments["query"], "top_k": int(call.arguments.get("top_k", USUAL_HITS))}
        )
        result = await self._search(call.document_tenant, request, call.request_id)
        if not result.data:
            return ToolResult("No passage fits.")
        return ToolResult("\n\n".join(_describe(number, hit) for number, hit in enumerate(result.data, start=1)))


def _describe(number: int, hit: SearchHit) -> str:
    place = [hit.filename or hit.document_id, *([] if hit.page is None else [f"page {hit.page}"]), *hit.headings]
    return f"[{number}] {', '.join(place)}\n{hit.text}"
