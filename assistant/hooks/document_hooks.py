"""Documents by hooks: kept files that a request names, the text of PDFs for models that take no files, the tool
`file_search` of responses, and `rag`, which grounds an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from assistant.documents.document_search import DocumentSearch
from assistant.documents.reader import DocumentReader
from assistant.hooks.completion_hooks import ConvertedCollector
from contract.documents import SearchResult
from contract.errors import RoundhouseError
from contract.files import VectorStoreResults
from contract.routing import ModelRoute
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import AnswerForm, ConditionalHook, ExchangeHooks, Pause, Trigger
from gateway.protocols.api_matrix import serving_option
from gateway.protocols.citations import AnnotatedChat, AnnotatedMessage
from gateway.protocols.citations import annotate_completion_body as annotate_completion
from gateway.protocols.citations import annotate_message_body as annotate_message
from gateway.protocols.common.dialect import EventStream
from gateway.protocols.common.field_reader import describe_value, field_error
from gateway.protocols.common.file_parts import (
    FILE_TYPES,
    NAMING_TYPES,
    FilePart,
    NamedFile,
    find_files,
    find_named_files,
)
from gateway.protocols.common.grounding import (
    FIELD,
    GroundingOptions,
    Passage,
    add_passages,
    build_search,
    fit_passages,
    read_options,
    write_context,
)
from gateway.protocols.common.large_body import LARGE_BYTES, WHOLE_COPIES
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.file_search import (
    FileSearch,
    find_question,
    is_file_search,
    merge_results,
    read_file_search,
)
from gateway.server.body_budget import BodyBudget
from gateway.tenancy.api_keys import find_document_tenant


class _KeptFiles:
    """The kept files that one request names: reads them, and holds memory for them until the request ends."""

    def __init__(self, exchange: Exchange, documents: DocumentSearch, budget: BodyBudget) -> None:
        self._exchange = exchange
        self._documents = documents
        self._budget = budget
        self._held_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self, files: Sequence[NamedFile], *, takes_files: bool) -> Pause:
        """Begin to put the contents of `files` in their places."""
        self._task = asyncio.get_running_loop().create_task(self._put_contents(files, takes_files=takes_files))
        self._exchange.add_hooks(ExchangeHooks(on_end=(self._end,)))
        return Pause(self._task)

    def _end(self, _: Exchange) -> None:
        if self._task is not None:
            self._task.cancel()
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._budget.give_back(held_bytes)

    async def _put_contents(self, files: Sequence[NamedFile], *, takes_files: bool) -> None:
        exchange, documents = self._exchange, self._documents
        tenant = find_document_tenant(exchange.caller, exchange.client.headers)
        request_id = exchange.answer.request_id
        first_parts: dict[str, NamedFile] = {}
        for file in files:
            first_parts.setdefault(file.file_id, file)
        found = {
            file_id: await documents.find_file(tenant, file_id, request_id, file.place)
            for file_id, file in first_parts.items()
        }
        self._hold([(file, found[file.file_id].bytes) for file in files])
        contents = {
            file_id: await documents.read_file(tenant, file_id, request_id, file.place)
            for file_id, file in first_parts.items()
        }
        for file in files:
            file.put_content(contents[file.file_id], found[file.file_id].filename, takes_files=takes_files)
        exchange.replace_request(exchange.request.with_fields(exchange.request.fields))

    def _hold(self, sizes: Sequence[tuple[NamedFile, int]]) -> None:
        """Hold memory for files of these sizes in bytes, each as often as it is named, as if the request held them."""
        most_bytes = min(self._exchange.services.settings.max_body_bytes, self._budget.max_held_bytes // WHOLE_COPIES)
        total = 0
        for file, size in sizes:
            total += size
            if total > most_bytes:
                message = f"The files that the request names have more than {most_bytes} bytes together."
                raise RoundhouseError("body_too_large", message, param=file.id_place)
        if total > LARGE_BYTES:
            if not self._budget.hold(WHOLE_COPIES * total):
                raise RoundhouseError("queue_full", "The files that other requests name take all memory for bodies.")
            self._held_bytes = WHOLE_COPIES * total


def _fetch_files(exchange: Exchange, route: ModelRoute, documents: DocumentSearch, budget: BodyBudget) -> Pause | None:
    request = exchange.request
    if not find_named_files(request.outline_fields):
        return None
    takes_files = serving_option(exchange.api.path, request, route).takes_files(route)
    files = find_named_files(request.fields)
    kept_files = [file for file in files if file.is_kept_id]
    if not takes_files and len(kept_files) < len(files):  # else a remote server knows its own
        other = next(file for file in files if not file.is_kept_id)
        rule = "must be the id of a file that is kept here (GET /v1/files)"
        raise field_error(other.id_place, f"{rule}; {describe_value(other.file_id)}")
    if not kept_files:
        return None
    exchange.count_request()  # before the files are read, which costs
    return _KeptFiles(exchange, documents, budget).begin(kept_files, takes_files=takes_files)


def _read_files(exchange: Exchange, route: ModelRoute, documents: DocumentReader) -> Pause | None:
    request = exchange.request
    if serving_option(exchange.api.path, request, route).takes_files(route):
        return None
    pdfs, has_changed = find_files(request.fields)
    if has_changed or request.large_body is not None:  # base64 is decoded whole
        exchange.replace_request(request.with_fields(request.fields))
    if not pdfs:
        return None
    task = asyncio.get_running_loop().create_task(documents.read_texts(pdfs))
    exchange.add_hooks(ExchangeHooks(on_end=(partial(_stop_reading, task),)))
    return Pause(task, partial(_put_texts, exchange, pdfs))


def _put_texts(exchange: Exchange, pdfs: Sequence[FilePart], texts: Sequence[str]) -> None:
    for part, text in zip(pdfs, texts, strict=True):
        part.put_text(text)
    exchange.replace_request(exchange.request.with_fields(exchange.request.fields))


def _stop_reading(task: asyncio.Task[list[str]], _: Exchange) -> None:
    task.cancel()


def kept_file_hooks(documents: DocumentSearch, budget: BodyBudget) -> ExchangeHooks:
    """Return the hooks, for every API, that put kept files in the place of their ids, before other hooks move parts.
    Their memory counts in `budget`.

    Errors: see `find_named_files`, `NamedFile.put_content` and `DocumentSearch.find_file`; `body_too_large` and
    `queue_full` for files beyond the memory for bodies.
    """
    fetch = partial(_fetch_files, documents=documents, budget=budget)
    return ExchangeHooks(on_request=(ConditionalHook(fetch, Trigger(parts=NAMING_TYPES)),))


def file_hooks(documents: DocumentReader) -> ExchangeHooks:
    """Return the hooks, for every API, that put the texts of files in their place if the model takes no files;
    `documents` reads PDFs. Errors: see `find_files` and `DocumentReader.read_texts`."""
    return ExchangeHooks(
        on_request=(ConditionalHook(partial(_read_files, documents=documents), Trigger(parts=FILE_TYPES)),)
    )


def _search_files(exchange: Exchange, route: ModelRoute, documents: DocumentSearch) -> Pause | None:
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
    task = asyncio.get_running_loop().create_task(_search_stores(exchange, documents, search, question))
    exchange.add_hooks(ExchangeHooks(on_end=(partial(_stop_file_search, task),)))
    return Pause(task, partial(_keep_results, exchange, search, question, route.context_length))


async def _search_stores(
    exchange: Exchange, documents: DocumentSearch, search: FileSearch, question: str
) -> Sequence[VectorStoreResults]:
    tenant = find_document_tenant(exchange.caller, exchange.client.headers)
    find_files, request = documents.search_files, search.tool.build_search(question)
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
    if found.hits:
        exchange.set_extra_text(exchange.extra_text_bytes + len(write_context(found.passages).encode()))


def _stop_file_search(task: asyncio.Task[Sequence[VectorStoreResults]], _: Exchange) -> None:
    task.cancel()


def _own_items(value: object) -> Sequence[object]:
    """Return the items of the request's own input, which need not be valid."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return value if isinstance(value, list) else []


def file_search_hooks(documents: DocumentSearch) -> ExchangeHooks:
    """Return the hooks for the tool `file_search` of responses: vector stores are searched for the client's last
    question before an engine is asked. Add them after `response_hooks`, which load the conversation so far."""
    hook = partial(_search_files, documents=documents)
    return ExchangeHooks(on_request=(ConditionalHook(hook, Trigger(frozenset(("tools",)))),))


_GROUNDED: Final = Trigger(frozenset((FIELD,)))


class AnswerAnnotator(NamedTuple):
    """Grounds answers in documents: searches them for a request, and has the answer say what it cites, in the form of
    its API family.

    One for each family; it holds no state of requests.
    """

    documents: DocumentSearch
    annotate_body: Callable[[bytes, Sequence[Passage], str | None], bytes]
    """Returns the body of a blocking answer with its citations and sources; one that is no answer unchanged."""
    wrap_stream: Callable[[EventStream, Sequence[Passage], str | None], EventStream]
    """Returns a stream with the events of another one, and its citations and sources."""

    def search_documents(self, exchange: Exchange, route: ModelRoute) -> Pause | None:
        """Search for the passages that the request's `rag` asks for, add them to the request, and have its answer
        annotated. A hook of `on_request`. The search is cancelled if the request ends before.

        Returns a pause that ends when the search does; None: the request's `rag` is null or false, and is removed.

        Raises:
            RoundhouseError: `invalid_request` if `rag` is wrong or there is no question; `rate_limit_exceeded`, since
                the request is counted here. The pause raises what `DocumentSearch.search` raises.
            RecursionError: the request's body is nested too deeply.
        """
        request = exchange.request
        options = read_options(request.fields.get(FIELD))
        if options is None:
            exchange.replace_request(request.with_fields(add_passages(request.fields, ())))
            return None
        search = build_search(options, request.fields)
        exchange.count_request()  # before the documents are searched, which costs
        tenant = find_document_tenant(exchange.caller, exchange.client.headers)
        result = self.documents.search(tenant, search, exchange.answer.request_id)
        task = asyncio.get_running_loop().create_task(result)
        exchange.add_hooks(ExchangeHooks(on_end=(partial(_stop_search, task),)))
        return Pause(task, partial(self._put_passages, exchange, options, route.context_length))

    def _put_passages(
        self, exchange: Exchange, options: GroundingOptions, context_length: int | None, result: SearchResult
    ) -> None:
        passages = fit_passages([Passage.of_hit(hit) for hit in result.data], options.max_tokens, context_length)
        exchange.replace_request(exchange.request.with_fields(add_passages(exchange.request.fields, passages)))
        exchange.add_hooks(ExchangeHooks(shape_answer=(partial(self._shape_answer, passages, result.notice),)))

    def _shape_answer(
        self, passages: Sequence[Passage], notice: str | None, _: Exchange, form: AnswerForm
    ) -> AnswerForm:
        translate = form.translate

        def annotate(body: bytes) -> bytes:
            return self.annotate_body(body, passages, notice)

        return form._replace(
            events=None if form.events is None else self.wrap_stream(form.events, passages, notice),
            collector=None if form.collector is None else ConvertedCollector(form.collector, annotate),
            translate=lambda body: annotate(body if translate is None else translate(body)),
            may_flow=False,
        )


def _stop_search(task: asyncio.Task[SearchResult], _: Exchange) -> None:
    task.cancel()


def grounded_chat_hooks(documents: DocumentSearch) -> ExchangeHooks:
    """Return the hooks that ground chat completions: for a request with the field `rag`, documents are searched,
    passages are added, and the answer cites them. Errors: see `AnswerAnnotator.search_documents`."""
    annotator = AnswerAnnotator(documents, annotate_completion, AnnotatedChat)
    return ExchangeHooks(on_request=(ConditionalHook(annotator.search_documents, _GROUNDED),))


def grounded_message_hooks(documents: DocumentSearch) -> ExchangeHooks:
    """Return the hooks that ground Anthropic's messages, as `grounded_chat_hooks` does for chat completions."""
    annotator = AnswerAnnotator(documents, annotate_message, AnnotatedMessage)
    return ExchangeHooks(on_request=(ConditionalHook(annotator.search_documents, _GROUNDED),))
