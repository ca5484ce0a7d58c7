"""Grounded answers by hooks: a request's `rag` has the tenant's documents searched before the model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from controller.schema.routing import ModelRoute
from gateway.exchange.attempt import AnswerForm
from gateway.exchange.completion_recorder import ConvertedCollector
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks, Pause
from gateway.protocols.anthropic.grounding import AnnotatedMessage
from gateway.protocols.anthropic.grounding import annotate_body as annotate_message
from gateway.protocols.chat.grounding import AnnotatedChat
from gateway.protocols.chat.grounding import annotate_body as annotate_completion
from gateway.protocols.common.dialect import EventStream
from gateway.protocols.common.grounding import FIELD, GroundingOptions, add_passages, build_search, read_options
from gateway.protocols.common.passages import Passage, fit_passages
from gateway.tenancy.clients import find_document_tenant
from retrieval.schema.search import SearchResult


class AnswerAnnotator(NamedTuple):
    """Grounds answers in documents: searches them for a request, and has the answer say what it cites, in the form of
    its API family.

    One for each family; it holds no state of requests.
    """

    annotate_body: Callable[[bytes, Sequence[Passage]], bytes]
    """Returns the body of a blocking answer with its citations and sources; one that is no answer unchanged."""
    wrap_stream: Callable[[EventStream, Sequence[Passage]], EventStream]
    """Returns a stream with the events of another one, and its citations and sources."""

    def search_documents(self, exchange: Exchange, route: ModelRoute) -> Pause | None:
        """Search for the passages that the request's `rag` asks for, add them to the request, and have its answer
        annotated. A hook of `on_request`. The search is cancelled if the request ends before.

        Returns a pause that ends when the search does; None: the request has no `rag`, or one that is null or false,
        which is removed.

        Raises:
            RoundhouseError: `invalid_request`: `rag` is wrong, or there is no question. `rate_limit_exceeded`: the
                request is counted here. The pause raises what `DocumentSearch.search` raises. RecursionError: the
                request's body is nested too deeply.
        """
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
        return Pause(task, partial(self._put_passages, exchange, options, route.context_length))

    def _put_passages(
        self, exchange: Exchange, options: GroundingOptions, context_length: int | None, result: SearchResult
    ) -> None:
        passages = fit_passages([Passage.of_hit(hit) for hit in result.data], options.max_tokens, context_length)
        exchange.replace_request(exchange.request.with_fields(add_passages(exchange.request.fields, passages)))
        exchange.add_hooks(ExchangeHooks(shape_answer=(partial(self._shape_answer, passages),)))

    def _shape_answer(self, passages: Sequence[Passage], _: Exchange, form: AnswerForm) -> AnswerForm:
        translate = form.translate

        def annotate(body: bytes) -> bytes:
            return self.annotate_body(body, passages)

        return form._replace(
            events=None if form.events is None else self.wrap_stream(form.events, passages),
            collector=None if form.collector is None else ConvertedCollector(form.collector, annotate),
            translate=lambda body: annotate(body if translate is None else translate(body)),
            may_flow=False,
        )


def _stop_search(task: asyncio.Task[SearchResult], _: Exchange) -> None:
    task.cancel()


GROUNDED_CHAT: Final = ExchangeHooks(on_request=(AnswerAnnotator(annotate_completion, AnnotatedChat).search_documents,))
"""The hooks of requests for chat completions."""
GROUNDED_MESSAGES: Final = ExchangeHooks(
    on_request=(AnswerAnnotator(annotate_message, AnnotatedMessage).search_documents,)
)
"""The hooks of requests for Anthropic's messages."""
