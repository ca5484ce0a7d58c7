"""/v1/files and /v1/vector_stores: OpenAI's files and vector stores, their batches, and searches in them."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import RoundhouseError
from contract.files import (
    OWN_DOCUMENTS,
    AttributesChange,
    DeletedFile,
    DeletedVectorStore,
    DeletedVectorStoreFile,
    FileContent,
    FileList,
    NewFileBatch,
    NewVectorStore,
    NewVectorStoreFile,
    TextContent,
    VectorStoreChange,
    VectorStoreFile,
    VectorStoreFileList,
    VectorStoreList,
    VectorStoreSearch,
)
from contract.retrieval import FILE, FILES, STORE, STORE_BATCH, STORE_BATCHES, STORE_FILE, STORE_FILES, STORES
from retrieval.api.requests import (
    FORM_TYPE,
    Handlers,
    RequestCaller,
    answer_file,
    answer_model,
    open_form,
    parse_body,
    read_body,
    read_caller,
    read_choice,
    read_integer,
)
from retrieval.catalog.originals import Originals
from retrieval.catalog.paging import PageRequest
from retrieval.file_search import LONGEST_LIFE_S, SHORTEST_LIFE_S, FileService, VectorStoreService, file_not_found
from retrieval.metrics import RetrievalMetrics
from retrieval.search import SearchService
from retrieval.views import build_file, build_search, merge_results

_FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_SERVED_PURPOSES: Final = ("assistants", "user_data", "vision")
_PURPOSES: Final = (*_SERVED_PURPOSES, "batch", "fine-tune", "evals")
"""By which files are listed; there may be some of the last three, from before they were refused."""
_MOST: Final = 10_000


class FileRoutes:
    """The handlers of `/v1/files`, over one FileService. Every handler raises RoundhouseError: `invalid_request` for a
    wrong parameter or field, `file_not_found` for a file that the tenant does not have; and sqlite3.Error if the
    catalog fails. `create_app` turns both into answers."""

    def __init__(self, service: FileService, originals: Originals, max_bytes: int) -> None:
        """`max_bytes`: most bytes of a file; a larger one is refused with `document_too_large`."""
        self._service = service
        self._originals = originals
        self._max_bytes = max_bytes

    def handlers(self) -> Handlers:
        """Return the handlers of this group by (method, path), for `create_app`."""
        return {
            ("POST", FILES): self.add_file,
            ("GET", FILES): self.list_files,
            ("GET", FILE): self.get_file,
            ("DELETE", FILE): self.delete_file,
            ("GET", f"{FILE}/content"): self.get_content,
        }

    async def add_file(self, request: Request) -> Response:
        """Store the file of a form durably, and answer it with a new id; the same content twice makes two files.

        Raises RoundhouseError `invalid_request`, `document_empty`, `document_too_large`, `storage_full` or
        `storage_failed`, and ClientDisconnect if the client leaves while it sends the form, of which nothing is stored
        then.
        """
        caller = read_caller(request)
        _check_form(request)
        async with open_form(request, self._max_bytes, _FIELDS, self._originals) as (values, upload, incoming):
            if values.get("purpose") not in _SERVED_PURPOSES:
                message = f"`purpose` must be one of {', '.join(_SERVED_PURPOSES)}."
                if values.get("purpose") in _PURPOSES:
                    message += f" Nothing here serves files for {values['purpose']}."
                raise RoundhouseError("invalid_request", message, param="purpose")
            file = await self._service.add_file(
                caller.tenant,
                incoming,
                filename=upload.filename or "file",
                media_type=upload.media_type,
                purpose=values["purpose"],
                expires_after_s=_life_of(values.get("expires_after[seconds]")),
            )
        return answer_model(build_file(file), caller)

    async def list_files(self, request: Request) -> Response:
        """Answer a page of the tenant's files that have not expired, newest first unless `order` is `asc`. Raises
        RoundhouseError `invalid_request`, also if `after` is the id of no file of the tenant; and sqlite3.Error if the
        catalog fails."""
        caller = read_caller(request)
        files, has_more = await self._service.list_files(
            caller.tenant,
            after=request.query_params.get("after"),
            limit=read_integer(request, "limit", _MOST, 1, _MOST),
            is_ascending=read_choice(request, "order", ("asc", "desc")) == "asc",
            purpose=read_choice(request, "purpose", _PURPOSES),
        )
        ids = [file.id for file in files]
        data = [build_file(file) for file in files]
        return answer_model(
            FileList(data=data, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more),
            caller,
        )

    async def get_file(self, request: Request) -> Response:
        """Answer a file without its content. Raises RoundhouseError `file_not_found`, also once the file has expired.
        Raises sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        file = await self._service.find_file(caller.tenant, request.path_params["file_id"])
        return answer_model(build_file(file), caller)

    async def delete_file(self, request: Request) -> Response:
        """Delete a file, also from all vector stores. Raises RoundhouseError `file_not_found`, also for a second
        deletion. Raises sqlite3.Error if the catalog fails."""
        caller, file_id = read_caller(request), request.path_params["file_id"]
        await self._service.delete_file(caller.tenant, file_id)
        return answer_model(DeletedFile(id=file_id), caller)

    async def get_content(self, request: Request) -> Response:
        """Answer the bytes that the client sent, as a download. Raises RoundhouseError `file_not_found`, also once the
        file has expired. Raises sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        file = await self._service.find_file(caller.tenant, request.path_params["file_id"])
        try:
            return await answer_file(self._service.original_of(file), file.filename, "file", caller)
        except FileNotFoundError:
            raise file_not_found(file.id) from None


def _check_form(request: Request) -> None:
    if not request.headers.get("content-type", "").lower().startswith(FORM_TYPE):
        raise RoundhouseError("invalid_request", f"Send `{FORM_TYPE}` with a `file`.", param="file")


def _life_of(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not SHORTEST_LIFE_S <= int(text) <= LONGEST_LIFE_S:
        message = f"`expires_after[seconds]` must be an integer from {SHORTEST_LIFE_S} to {LONGEST_LIFE_S}."
        raise RoundhouseError("invalid_request", message, param="expires_after[seconds]")
    return int(text)


_MOST_BYTES: Final = 1024 * 1024
_STATUSES: Final = ("in_progress", "completed", "failed", "cancelled")
MOST_QUERIES: Final = 10


class VectorStoreRoutes:
    """The handlers of `/v1/vector_stores`, over one VectorStoreService and one SearchService.

    Every handler raises RoundhouseError: `invalid_request` or `invalid_json` for wrong parameters or a wrong body,
    `body_too_large` for a body above 1 MiB, `vector_store_not_found`, and what the service's method raises;
    sqlite3.Error if the catalog fails; and, where it reads a body, ClientDisconnect if the client leaves while it sends
    the body. `create_app` turns all into answers.
    """

    def __init__(self, service: VectorStoreService, search: SearchService, metrics: RetrievalMetrics) -> None:
        self._service = service
        self._search = search
        self._metrics = metrics

    def handlers(self) -> Handlers:
        """Return the handlers of this group by (method, path), for `create_app`."""
        return {
            ("POST", STORES): self.create_store,
            ("GET", STORES): self.list_stores,
            ("GET", STORE): self.get_store,
            ("POST", STORE): self.change_store,
            ("DELETE", STORE): self.delete_store,
            ("POST", f"{STORE}/search"): self.search_store,
            ("POST", STORE_FILES): self.add_file,
            ("GET", STORE_FILES): self.list_files,
            ("GET", STORE_FILE): self.get_file,
            ("POST", STORE_FILE): self.change_file,
            ("DELETE", STORE_FILE): self.remove_file,
            ("GET", f"{STORE_FILE}/content"): self.get_content,
            ("POST", STORE_BATCHES): self.add_batch,
            ("GET", STORE_BATCH): self.get_batch,
            ("POST", f"{STORE_BATCH}/cancel"): self.cancel_batch,
            ("GET", f"{STORE_BATCH}/files"): self.list_batch_files,
        }

    async def create_store(self, request: Request) -> Response:
        """Create a vector store, and add its first files; an empty body means no fields. Raises sqlite3.Error if the
        catalog fails, and RoundhouseError `body_too_large`, `invalid_json`, `invalid_request`, `file_not_found`,
        `retrieval_busy`, `storage_full` or `storage_failed`; after the last four, the vector store may exist with some
        of its files."""
        caller = read_caller(request)
        new = parse_body(NewVectorStore, await read_body(request, _MOST_BYTES) or b"{}")
        return answer_model(await self._service.create_store(caller.tenant, new), caller)

    async def list_stores(self, request: Request) -> Response:
        """Answer a page of the tenant's vector stores, expired ones included, newest first unless `order` is `asc`.
        Raises RoundhouseError `invalid_request`, also if `after` or `before` is the id of no vector store of the
        tenant; and sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        stores, has_more = await self._service.list_stores(caller.tenant, _read_page(request))
        ids = [store.id for store in stores]
        page = VectorStoreList(
            data=stores, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more
        )
        return answer_model(page, caller)

    async def get_store(self, request: Request) -> Response:
        """Answer a vector store, also an expired one. Raises RoundhouseError `vector_store_not_found`. Raises
        sqlite3.Error if the catalog fails."""
        caller, store_id = _named(request)
        return answer_model(await self._service.get_store(caller.tenant, store_id), caller)

    async def change_store(self, request: Request) -> Response:
        """Change the fields of a vector store that the body names; null clears one. Counts as activity. Raises
        RoundhouseError `vector_store_not_found`, `body_too_large`, `invalid_json` or `invalid_request`; and
        sqlite3.Error if the catalog fails."""
        caller, store_id = _named(request)
        change = parse_body(VectorStoreChange, await read_body(request, _MOST_BYTES))
        return answer_model(await self._service.change_store(caller.tenant, store_id, change), caller)

    async def delete_store(self, request: Request) -> Response:
        """Delete a vector store with what it has made of its files; the files stay. Raises RoundhouseError
        `vector_store_not_found`, also for a second deletion; `storage_full` or `storage_failed`; and sqlite3.Error if
        the catalog fails."""
        caller, store_id = _named(request)
        await self._service.delete_store(caller.tenant, store_id)
        return answer_model(DeletedVectorStore(id=store_id), caller)

    async def search_store(self, request: Request) -> Response:
        """Search for each of the queries (1 to `MOST_QUERIES`), one after the other, and answer their hits together,
        best first. A chunk that several queries found is there once, with its best score. Counts as activity of the
        vector store. The id `documents` stands for the tenant's documents that are in no vector store.

        Raises RoundhouseError `body_too_large`, `invalid_json`, `invalid_request`, `vector_store_not_found` or
        `vector_store_expired`, and what `SearchService.search` raises; sqlite3.Error if the catalog fails; and
        ClientDisconnect if the client leaves while it sends the body. Without a rerank model, `ranker` is ignored.
        """
        caller, store_id = _named(request)
        wanted = parse_body(VectorStoreSearch, await read_body(request, _MOST_BYTES))
        queries = [wanted.query] if isinstance(wanted.query, str) else wanted.query
        if not 1 <= len(queries) <= MOST_QUERIES or not all(queries):
            message = f"`query` must be a text, or 1 to {MOST_QUERIES} texts."
            raise RoundhouseError("invalid_request", message, param="query")
        space = "" if store_id == OWN_DOCUMENTS else store_id
        if space:
            await self._service.use_store(caller.tenant, space)
        reranks = self._search.has_rerank_model
        results = []
        for query in queries:
            began = time.perf_counter()
            asked = build_search(wanted, query, has_reranker=reranks)
            result = await self._search.search(caller.tenant, (space,), asked)
            self._metrics.record_search(result, time.perf_counter() - began)
            results.append(result)
        return answer_model(merge_results(wanted, queries, results), caller)

    async def add_file(self, request: Request) -> Response:
        """Add a file to a vector store, and answer at once; indexing follows. Raises RoundhouseError `body_too_large`,
        `invalid_json`, `invalid_request`, `vector_store_not_found`, `vector_store_expired`, `file_not_found`,
        `retrieval_busy`, `storage_full` or `storage_failed`; and sqlite3.Error if the catalog fails."""
        caller, store_id = _named(request)
        new = parse_body(NewVectorStoreFile, await read_body(request, _MOST_BYTES))
        return answer_model(await self._service.add_file(caller.tenant, store_id, new), caller)

    async def list_files(self, request: Request) -> Response:
        """Answer a page of a vector store's files, those with the status `filter` if that is given. Raises
        RoundhouseError `vector_store_not_found`, and `invalid_request`, also if `after` or `before` is the id of no
        file of it; and sqlite3.Error if the catalog fails."""
        caller, store_id = _named(request)
        files, has_more = await self._service.list_files(
            caller.tenant, store_id, _read_page(request), status=read_choice(request, "filter", _STATUSES)
        )
        return answer_model(_page_of(files, has_more=has_more), caller)

    async def get_file(self, request: Request) -> Response:
        """Answer the status and attributes of a file in a vector store. Raises RoundhouseError
        `vector_store_not_found`, or `file_not_found` where the vector store does not have the file. Raises
        sqlite3.Error if the catalog fails."""
        caller, store_id = _named(request)
        file = await self._service.get_file(caller.tenant, store_id, request.path_params["file_id"])
        return answer_model(file, caller)

    async def change_file(self, request: Request) -> Response:
        """Replace all attributes of a file in a vector store; the file is indexed again. Raises RoundhouseError
        `body_too_large`, `invalid_json`, `invalid_request`, `vector_store_not_found`, `file_not_found`,
        `retrieval_busy`, `storage_full` or `storage_failed`; and sqlite3.Error if the catalog fails."""
        caller, store_id = _named(request)
        change = parse_body(AttributesChange, await read_body(request, _MOST_BYTES))
        file = await self._service.change_attributes(
            caller.tenant, store_id, request.path_params["file_id"], change.attributes or {}
        )
        return answer_model(file, caller)

    async def remove_file(self, request: Request) -> Response:
        """Remove a file from a vector store; the file itself stays. Raises RoundhouseError `vector_store_not_found`,
        `file_not_found`, also for a second removal, `storage_full` or `storage_failed`; and sqlite3.Error if the
        catalog fails."""
        caller, store_id = _named(request)
        file_id = request.path_params["file_id"]
        await self._service.remove_file(caller.tenant, store_id, file_id)
        return answer_model(DeletedVectorStoreFile(id=file_id), caller)

    async def get_content(self, request: Request) -> Response:
        """Answer the text that was extracted from a file. Raises RoundhouseError `vector_store_not_found`,
        `file_not_found`, or `document_not_found` if the file is not searchable yet; and sqlite3.Error if the catalog
        fails."""
        caller, store_id = _named(request)
        text = await self._service.read_text(caller.tenant, store_id, request.path_params["file_id"])
        return answer_model(FileContent(data=[TextContent(text=text)]), caller)

    async def add_batch(self, request: Request) -> Response:
        """Add up to 2000 files to a vector store, and answer the batch at once; indexing follows. Raises sqlite3.Error
        if the catalog fails, and RoundhouseError `body_too_large`, `invalid_json`, `invalid_request`,
        `vector_store_not_found`, `vector_store_expired`, `file_not_found`, `retrieval_busy`, `storage_full` or
        `storage_failed`."""
        caller, store_id = _named(request)
        new = parse_body(NewFileBatch, await read_body(request, _MOST_BYTES))
        return answer_model(await self._service.add_batch(caller.tenant, store_id, new), caller)

    async def get_batch(self, request: Request) -> Response:
        """Answer a batch with its files by status. Raises RoundhouseError `vector_store_not_found`, also for an unknown
        batch. Raises sqlite3.Error if the catalog fails."""
        caller, store_id = _named(request)
        batch = await self._service.get_batch(caller.tenant, store_id, request.path_params["batch_id"])
        return answer_model(batch, caller)

    async def cancel_batch(self, request: Request) -> Response:
        """Stop indexing the files of a batch, and answer the batch; files that are searchable stay. Raises
        RoundhouseError `vector_store_not_found`, also for an unknown batch. Raises sqlite3.Error if the catalog fails.
        """
        caller, store_id = _named(request)
        batch = await self._service.cancel_batch(caller.tenant, store_id, request.path_params["batch_id"])
        return answer_model(batch, caller)

    async def list_batch_files(self, request: Request) -> Response:
        """Answer a page of the files of a batch, those with the status `filter` if that is given; files that were
        removed from the vector store are missing. Raises RoundhouseError `vector_store_not_found`, also for an unknown
        batch, and `invalid_request`, also if `after` or `before` is the id of no file of the batch; and sqlite3.Error
        if the catalog fails."""
        caller, store_id = _named(request)
        files, has_more = await self._service.list_batch_files(
            caller.tenant,
            store_id,
            request.path_params["batch_id"],
            _read_page(request),
            status=read_choice(request, "filter", _STATUSES),
        )
        return answer_model(_page_of(files, has_more=has_more), caller)


def _named(request: Request) -> tuple[RequestCaller, str]:
    return read_caller(request), request.path_params["vector_store_id"]


def _read_page(request: Request) -> PageRequest:
    after, before = request.query_params.get("after"), request.query_params.get("before")
    if after is not None and before is not None:
        raise RoundhouseError("invalid_request", "Send either `after` or `before`.", param="before")
    limit = read_integer(request, "limit", 20, 1, 100)
    return PageRequest(limit, read_choice(request, "order", ("asc", "desc")) == "asc", after, before)


def _page_of(files: list[VectorStoreFile], *, has_more: bool) -> VectorStoreFileList:
    ids = [file.id for file in files]
    return VectorStoreFileList(
        data=files, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more
    )
