"""/v1/documents, /v1/search, /v1/tenants and /v1/retrieval. Without the scope `admin`, a caller sees and deletes its
own tenant alone, and /v1/retrieval is closed to it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from contract.documents import (
    ChunkList,
    DeletedDocument,
    DeletedTenant,
    Document,
    DocumentList,
    SearchRequest,
    TenantList,
)
from contract.errors import RoundhouseError
from contract.retrieval import DOCUMENT, RetrievalStatus
from retrieval.api.requests import (
    Handlers,
    RequestCaller,
    answer_file,
    answer_model,
    open_upload,
    parse_body,
    read_body,
    read_boolean,
    read_caller,
    read_choice,
    read_integer,
    read_json_parameter,
    tenant_headers,
)
from retrieval.catalog.originals import Originals
from retrieval.catalog.records import DocumentKey
from retrieval.catalog.versions import DocumentCount
from retrieval.documents import DocumentService
from retrieval.filters import FilterError, parse_filter
from retrieval.metrics import RetrievalMetrics
from retrieval.search import SearchService
from retrieval.views import build_chunk, build_tenant

DOCUMENTS: Final = "/v1/documents"
SPACE: Final = ""
"""The space of these documents: empty, for they belong to no vector store."""
_STATES: Final = ("queued", "parsing", "embedding", "ready", "failed")
_MOST: Final = 2**31
LONGEST_WAIT_S: Final = 600.0
"""Seconds after which a request with `wait=true` is answered with the document as it is then."""


class DocumentRoutes:
    """The handlers of `/v1/documents`, over one DocumentService. Every handler raises RoundhouseError:
    `invalid_request` for a wrong parameter, and what the service's method raises; and sqlite3.Error if the catalog
    fails. `create_app` turns both into answers."""

    def __init__(self, service: DocumentService, originals: Originals, max_bytes: int) -> None:
        """`max_bytes`: most bytes of a document; a larger one is refused with `document_too_large`."""
        self._service = service
        self._originals = originals
        self._max_bytes = max_bytes

    def handlers(self) -> Handlers:
        """Return the handlers of this group by (method, path), for `create_app`."""
        return {
            ("POST", DOCUMENTS): self.add_document,
            ("GET", DOCUMENTS): self.list_documents,
            ("GET", DOCUMENT): self.get_document,
            ("DELETE", DOCUMENT): self.delete_document,
            ("GET", f"{DOCUMENT}/chunks"): self.list_chunks,
            ("GET", f"{DOCUMENT}/text"): self.get_text,
            ("GET", f"{DOCUMENT}/content"): self.get_content,
            ("GET", f"{DOCUMENT}/events"): self.follow_document,
        }

    async def add_document(self, request: Request) -> Response:
        """Store a document, and queue it for indexing. Answer status 202, or 200 if the same version is there already.

        With `wait=true`, answer 200 once the document is searchable, or 202 with its state after `LONGEST_WAIT_S`. If
        indexing fails, answer that error; the new version is then removed, and an earlier searchable one stays.

        Raises RoundhouseError `retrieval_busy`, `document_too_large`, `body_too_large`, `document_empty`,
        `invalid_json`, `invalid_request`, `storage_full` or `storage_failed`, with `wait=true` also the code of the
        failure, or `document_not_found` if it is deleted meanwhile; sqlite3.Error if the catalog cannot be read; and
        ClientDisconnect if the client leaves while it sends the document, which then is not stored.
        """
        caller, waits = read_caller(request), read_boolean(request, "wait")
        await self._service.check_room()
        async with open_upload(request, self._max_bytes, self._originals) as (fields, incoming):
            document, is_new = await self._service.accept_document(caller.tenant, SPACE, fields, incoming)
        if waits:
            document = await self._wait(DocumentKey(caller.tenant, SPACE, document.id))
        status = 202 if (is_new and not waits) or (waits and document.status != "ready") else 200
        return answer_model(document, caller, status, location=f"{DOCUMENTS}/{document.id}")

    async def _wait(self, key: DocumentKey) -> Document:
        """Return the document when it is searchable, or as it is after `LONGEST_WAIT_S`. The caller may be gone."""
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                return await self._service.wait_for_document(key)
        except TimeoutError:
            return await self._service.find_document(key)

    async def list_documents(self, request: Request) -> Response:
        """Answer a page of the tenant's own documents (without those of vector stores) that match the parameters
        `filter` and `status`. Raises RoundhouseError `invalid_request`, also if `after` is the id of no such document;
        and sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        try:
            parsed = parse_filter(read_json_parameter(request, "filter"))
        except FilterError as error:
            raise RoundhouseError("invalid_request", f"{error}.", param="filter") from None
        page = await self._service.list_documents(
            caller.tenant,
            SPACE,
            after=request.query_params.get("after"),
            limit=read_integer(request, "limit", 20, 1, 100),
            is_ascending=read_choice(request, "order", ("asc", "desc")) == "asc",
            filter=parsed,
            status=read_choice(request, "status", _STATES),
        )
        ids = [document.id for document in page.documents]
        result = DocumentList(
            data=page.documents,
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
            has_more=page.has_more,
        )
        return answer_model(result, caller)

    async def get_document(self, request: Request) -> Response:
        """Answer a document without its text. Raises RoundhouseError `document_not_found`. Raises sqlite3.Error if the
        catalog fails."""
        caller, key = _named(request)
        return answer_model(await self._service.find_document(key), caller)

    async def delete_document(self, request: Request) -> Response:
        """Delete a document; when this answers, no search finds it. Raises RoundhouseError `document_not_found`, also
        for a second deletion; `storage_full` or `storage_failed`."""
        caller, key = _named(request)
        await self._service.delete_document(key)
        return answer_model(DeletedDocument(id=key.id, deleted=True), caller)

    async def list_chunks(self, request: Request) -> Response:
        """Answer a page of the chunks of the searchable version, in the order of the text, empty where there is none.
        The parameter `after` is the index of a chunk, from 0: the page begins behind it. Raises RoundhouseError
        `invalid_request` or `document_not_found`. Raises sqlite3.Error if the catalog fails."""
        caller, key = _named(request)
        first = read_integer(request, "after", -1, 0, _MOST) + 1
        limit = read_integer(request, "limit", 20, 1, 100)
        chunks, has_more = await self._service.read_chunks(key, first=first, limit=limit)
        return answer_model(
            ChunkList(document_id=key.id, data=[build_chunk(chunk) for chunk in chunks], has_more=has_more), caller
        )

    async def get_text(self, request: Request) -> Response:
        """Answer the text of the searchable version in UTF-8. Raises RoundhouseError `document_not_found`, also where
        no version is searchable yet. Raises sqlite3.Error if the catalog fails."""
        caller, key = _named(request)
        text = await self._service.read_text(key)
        return Response(text, headers=tenant_headers(caller), media_type="text/plain; charset=utf-8")

    async def get_content(self, request: Request) -> Response:
        """Answer the bytes that the client sent, of the newest version, as a download. Raises RoundhouseError
        `document_not_found`. Raises sqlite3.Error if the catalog fails."""
        caller, key = _named(request)
        path, document = await self._service.find_original(key)
        try:
            return await answer_file(path, document.newest.filename or key.id, "document", caller)
        except FileNotFoundError:
            message = f"The document {key.id!r:.250} was deleted or replaced meanwhile."
            raise RoundhouseError("document_not_found", message, param="document_id") from None

    async def follow_document(self, request: Request) -> Response:
        """Answer a stream of server-sent events: `document` with the document as it is now, and again after changes,
        until it is `ready` or `failed`. Changes in quick succession may come as one event.

        Raises RoundhouseError `document_not_found` for an unknown document, and sqlite3.Error if the catalog fails. If
        the document is deleted later, the stream ends with an event `error`; if the catalog fails later, it breaks off.
        """
        caller, key = _named(request)
        await self._service.find_document(key)  # an unknown one has a status of its own

        async def events() -> AsyncIterator[bytes]:
            try:
                async for document in self._service.follow_document(key):
                    yield b"event: document\ndata: " + document.model_dump_json().encode() + b"\n\n"
            except RoundhouseError as error:
                body = json.dumps(error.build_envelope().model_dump())
                yield b"event: error\ndata: " + body.encode() + b"\n\n"

        headers = {**tenant_headers(caller), "cache-control": "no-store"}
        return StreamingResponse(events(), headers=headers, media_type="text/event-stream")


def _named(request: Request) -> tuple[RequestCaller, DocumentKey]:
    caller = read_caller(request)
    return caller, DocumentKey(caller.tenant, SPACE, request.path_params["document_id"])


_MOST_BYTES: Final = 1024 * 1024
_SPACES: Final = (SPACE,)
MOST_NAMED: Final = 5
"""Tenants that the notice of a search without hits names."""


class SearchRoutes:
    """The handler of `/v1/search`, over one SearchService. Answered searches are recorded in the metrics."""

    def __init__(self, service: SearchService, documents: DocumentService, metrics: RetrievalMetrics) -> None:
        """`documents`: counts what a search without hits could have found."""
        self._service = service
        self._documents = documents
        self._metrics = metrics

    def handlers(self) -> Handlers:
        """Return the one handler by (method, path), for `create_app`."""
        return {("POST", "/v1/search"): self.search}

    async def search(self, request: Request) -> Response:
        """Answer the hits of a search over the tenant's own documents, without those of vector stores.

        Raises RoundhouseError `body_too_large` above 1 MiB, `invalid_json`, `invalid_request`, and what
        `SearchService.search` raises (sqlite3.Error, too); ClientDisconnect if the client leaves while it sends the
        body. An answered search is recorded in the metrics. The notice of one without hits says how many documents the
        tenant has, and, to a caller with the scope `admin`, which others have some.
        """
        caller = read_caller(request)
        wanted = parse_body(SearchRequest, await read_body(request, _MOST_BYTES))
        began = time.perf_counter()
        result = await self._service.search(caller.tenant, _SPACES, wanted)
        self._metrics.record_search(result, time.perf_counter() - began)
        if not result.data:
            counts = await self._documents.count_documents(None if caller.is_admin else caller.tenant, SPACE)
            words = explain_no_hits(caller.tenant, counts)
            if not counts and not caller.is_admin:  # so it has a key
                words += " It has those that were added with a key of the same `tenant`."
            result = result.model_copy(update={"notice": f"{result.notice} {words}" if result.notice else words})
        return answer_model(result, caller)


def explain_no_hits(tenant: str, counts: Mapping[str, DocumentCount]) -> str:
    """Return in a sentence how many documents a search without hits was about, and which other tenants have some, the
    largest first. `counts`: by the tenant's name, of those that the caller may know of."""
    found = ((each.documents, name) for name, each in counts.items() if name != tenant)
    others = sorted(found, key=lambda each: -each[0])
    count, searchable = counts.get(tenant, (0, 0))
    words = f"The tenant {tenant} has {count or 'no'} document{'' if count == 1 else 's'}"
    if count and searchable == count:
        words += ", of which none fits"
    elif count:
        words += f", of which {searchable} can be searched and none fits" if searchable else ", not searchable yet"
    if not others:
        return f"{words}."
    named = [f"{name} ({count})" for count, name in others[:MOST_NAMED]]
    more = len(others) - len(named)
    return f"{words}. Other tenants have some: {', '.join(named)}{f' and {more} more' if more else ''}."


class TenantRoutes:
    """The handlers of `/v1/tenants`, over one DocumentService. They check the scope `admin` themselves, by the header
    of the gateway: without it, a caller has its own tenant alone. Every handler raises RoundhouseError
    `invalid_request` for a request that names no tenant."""

    def __init__(self, service: DocumentService) -> None:
        self._service = service

    def handlers(self) -> Handlers:
        """Return the handlers of this group by (method, path), for `create_app`."""
        return {
            ("GET", "/v1/tenants"): self.list_tenants,
            ("DELETE", "/v1/tenants/{tenant_id:path}"): self.delete_tenant,
        }

    async def list_tenants(self, request: Request) -> Response:
        """Answer the tenants that have documents, by name: all for a caller with the scope `admin`, else the caller's
        own alone. The list may be empty. Raises sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        tenants = await self._service.list_tenants(None if caller.is_admin else caller.tenant)
        return answer_model(TenantList(data=[build_tenant(each) for each in tenants]), caller)

    async def delete_tenant(self, request: Request) -> Response:
        """Delete all documents, files and vector stores of a tenant, and answer how many documents there were.

        Raises RoundhouseError `tenant_not_found` where the tenant has neither documents nor files, and, without the
        scope `admin`, for every tenant but the caller's own; `storage_full` or `storage_failed`.
        """
        caller, tenant = read_caller(request), request.path_params["tenant_id"]
        if not caller.is_admin and tenant != caller.tenant:
            raise RoundhouseError("tenant_not_found", f"The tenant {tenant!r:.100} has stored nothing.")
        count = await self._service.delete_tenant(tenant)
        return answer_model(DeletedTenant(id=tenant, deleted=True, documents=count), caller)


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
        """Accept the wall clock as it is now (`TrustedClock.confirm`), and answer the state. Raises sqlite3.Error if
        the catalog fails."""
        caller = read_caller(request)
        await asyncio.to_thread(self._confirm_clock)
        return answer_model(await self._read_status(), caller)
