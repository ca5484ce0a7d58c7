"""Grounded answers by hooks: `rag` of a chat completion searches the tenant's documents before the model is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.exchange.attempt import AnswerForm
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks, Pause
from gateway.protocols.chat.dialect import ChatCollector
from gateway.protocols.chat.grounding import (
    FIELD,
    GroundingOptions,
    add_passages,
    annotate_completion,
    build_last_chunk,
    build_search,
    fit_passages,
    read_options,
)
from gateway.protocols.common.dialect import EventStream, StreamCollector, Usage
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.tenancy.clients import find_document_tenant
from retrieval.schema.search import SearchHit, SearchResult

_DONE: Final = b"data: [DONE]"


def _search_documents(exchange: Exchange, _: ModelRoute) -> Pause | None:
    request = exchange.request
    if FIELD not in request.outline_fields:
        return None
    options = read_options(request.fields.get(FIELD))
    if options is None:
        exchange.replace_request(request.with_fields(add_passages(request.fields, ())))
        return None
    search = build_search(options, request.fields)
    exchange.count_request()  # before the documents are searched, which costs
    tenant = find_document_tenant(exchange.caller, exchange.client.headers)
    result = exchange.services.document_search.search(tenant, search, exchange.answer.request_id)
    task = asyncio.get_running_loop().create_task(result)
    exchange.add_hooks(ExchangeHooks(on_end=(partial(_stop_search, task),)))
    return Pause(task, partial(_put_passages, exchange, options))


def _put_passages(exchange: Exchange, options: GroundingOptions, result: SearchResult) -> None:
    passages = fit_passages(result.data, options.max_tokens)
    exchange.replace_request(exchange.request.with_fields(add_passages(exchange.request.fields, passages)))
    exchange.add_hooks(ExchangeHooks(shape_answer=(partial(_shape_answer, passages),)))


def _stop_search(task: asyncio.Task[SearchResult], _: Exchange) -> None:
    task.cancel()


def _shape_answer(passages: Sequence[SearchHit], _: Exchange, form: AnswerForm) -> AnswerForm:
    def annotate_body(body: bytes) -> bytes:
        fields = decode_json(body)
        if not isinstance(fields, dict) or not isinstance(fields.get("choices"), list):
            return body
        annotate_completion(fields, passages)
        return encode_json(fields)

    translate = form.translate
    return form._replace(
        events=None if form.events is None else _AnnotatedStream(form.events, passages),
        collector=None if form.collector is None else _AnnotatedCollector(form.collector, annotate_body),
        translate=lambda body: annotate_body(body if translate is None else translate(body)),
        may_flow=False,
    )


class _AnnotatedCollector:
    """A `StreamCollector` whose answer is annotated."""

    __slots__ = ("_annotate_body", "_collector")

    def __init__(self, collector: StreamCollector, annotate_body: Callable[[bytes], bytes]) -> None:
        self._collector = collector
        self._annotate_body = annotate_body

    @property
    def usage(self) -> Usage | None:
        """See StreamCollector, as for the others."""
        return self._collector.usage

    def feed_data(self, chunk: bytes) -> None:
        """See StreamCollector."""
        self._collector.feed_data(chunk)

    def build_result(self) -> tuple[int, bytes] | None:
        """See StreamCollector."""
        result = self._collector.build_result()
        if result is None or result[0] >= 400:
            return result
        return result[0], self._annotate_body(result[1])


class _AnnotatedStream:
    """An `EventStream` with one event more before its last: the citations of the whole answer, and the sources."""

    __slots__ = ("_collector", "_events", "_is_annotated", "_passages")

    def __init__(self, events: EventStream, passages: Sequence[SearchHit]) -> None:
        self._events = events
        self._passages = passages
        self._collector = ChatCollector(is_chat=True)
        self._is_annotated = False

    @property
    def usage(self) -> Usage | None:
        """See EventStream, as for the others."""
        return self._events.usage

    @property
    def is_complete(self) -> bool:
        """See EventStream."""
        return self._events.is_complete

    def feed_data(self, chunk: bytes) -> bytes:
        """See EventStream."""
        passed_events = self._events.feed_data(chunk)
        self._collector.feed_data(passed_events)
        return self._annotate(passed_events)

    def finish_stream(self) -> bytes:
        """See EventStream."""
        last_events = self._events.finish_stream()
        self._collector.feed_data(last_events)
        return self._annotate(last_events)

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """See EventStream."""
        return self._events.fail_stream(error, request_id)

    def _annotate(self, events: bytes) -> bytes:
        position = -1 if self._is_annotated else events.rfind(_DONE)
        if position < 0 or not self._collector.is_done:
            return events
        self._is_annotated = True
        result = self._collector.build_result()
        completion = None if result is None or result[0] >= 400 else decode_json(result[1])
        if not isinstance(completion, dict):
            return events
        chunk = json.dumps(build_last_chunk(completion, self._passages), ensure_ascii=False).encode()
        return events[:position] + b"data: " + chunk + b"\n\n" + events[position:]


GROUNDING_HOOKS: Final = ExchangeHooks(on_request=(_search_documents,))
"""The hooks of requests for chat completions."""
