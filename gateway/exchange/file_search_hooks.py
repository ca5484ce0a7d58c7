"""The tool `file_search` of responses by hooks: vector stores are searched before the model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from controller.schema.routing import ModelRoute
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks, Pause
from gateway.protocols.common.passages import write_context
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.file_search import (
    FileSearch,
    find_question,
    is_file_search,
    merge_results,
    read_file_search,
)
from gateway.tenancy.clients import find_document_tenant
from retrieval.schema.files import VectorStoreResults


def _search_files(exchange: Exchange, route: ModelRoute) -> Pause | None:
    tools = exchange.request.outline_fields.get("tools")
    if not isinstance(tools, list) or not any(map(is_file_search, tools)):
        return None
    search = read_file_search(exchange.request.fields)
    context: ResponseContext = exchange.request.state
    if search is None or context.may_lack_input:
        return None
    question = find_question([*context.history, *_own_items(exchange.request.fields.get("input"))])
    if not question:
        return None
    exchange.count_request()  # before the files are searched, which costs
    task = asyncio.get_running_loop().create_task(_search_stores(exchange, search, question))
    exchange.add_hooks(ExchangeHooks(on_end=(partial(_stop_search, task),)))
    return Pause(task, partial(_keep_results, exchange, search, question, route.context_length))


async def _search_stores(exchange: Exchange, search: FileSearch, question: str) -> Sequence[VectorStoreResults]:
    tenant = find_document_tenant(exchange.caller, exchange.client.headers)
    find_files, request = exchange.services.document_search.search_files, search.tool.build_search(question)
    stores, request_id = dict.fromkeys(search.tool.vector_store_ids), exchange.answer.request_id
    return await asyncio.gather(*(find_files(tenant, store, request, request_id, search.place) for store in stores))


def _keep_results(
    exchange: Exchange,
    search: FileSearch,
    question: str,
    context_length: int | None,
    results: Sequence[VectorStoreResults],
) -> None:
    found = merge_results(search, question, results, context_length)
    context: ResponseContext = exchange.request.state
    context.found_files = found
    exchange.extra_text_bytes += len(write_context(found.passages).encode()) if found.hits else 0


def _stop_search(task: asyncio.Task[Sequence[VectorStoreResults]], _: Exchange) -> None:
    task.cancel()


def _own_items(value: object) -> Sequence[object]:
    """Return the items of the request's own input, which need not be valid."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return value if isinstance(value, list) else []


FILE_SEARCH_HOOKS: Final = ExchangeHooks(on_request=(_search_files,))
"""The hooks of requests for responses. Those that load what the request continues must come before."""
