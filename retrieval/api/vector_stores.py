"""/v1/vector_stores: OpenAI's vector stores, their files and batches, and searches in them."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from controller.schema.errors import RoundhouseError
from retrieval.api.requests import (
    Handlers,
    RequestCaller,
    answer_model,
    parse_body,
    read_body,
    read_caller,
    read_choice,
    read_integer,
)
from retrieval.file_search.searching import build_search, merge_results
from retrieval.file_search.store_service import VectorStoreService
from retrieval.schema.files import (
    AttributesChange,
    DeletedVectorStore,
    DeletedVectorStoreFile,
    FileContent,
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
from retrieval.schema.routes import STORE, STORE_BATCH, STORE_BATCHES, STORE_FILE, STORE_FILES, STORES
from retrieval.search.service import SearchService

_MOST_BYTES: Final = 1024 * 1024
_STATUSES: Final = ("in_progress", "completed", "failed", "cancelled")
MOST_QUERIES: Final = 10


class VectorStoreRoutes:
    """The handlers of one service."""

    def __init__(self, service: VectorStoreService, search: SearchService) -> None:
        self._service = service
        self._search = search

    def handlers(self) -> Handlers:
        """Return the handlers of this group."""
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
        """Create a vector store."""
        caller = read_caller(request)
        new = parse_body(NewVectorStore, await read_body(request, _MOST_BYTES) or b"{}")
        return answer_model(await self._service.create_store(caller.tenant, new), caller)

    async def list_stores(self, request: Request) -> Response:
        """Answer a page of vector stores."""
        caller = read_caller(request)
        stores, has_more = await self._service.list_stores(
            caller.tenant,
            after=request.query_params.get("after"),
            limit=read_integer(request, "limit", 20, 1, 100),
            is_ascending=read_choice(request, "order", ("asc", "desc")) == "asc",
        )
        ids = [store.id for store in stores]
        page = VectorStoreList(
            data=stores, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more
        )
        return answer_model(page, caller)

    async def get_store(self, request: Request) -> Response:
        """Answer a vector store."""
        caller, store_id = _named(request)
        return answer_model(await self._service.get_store(caller.tenant, store_id), caller)

    async def change_store(self, request: Request) -> Response:
        """Change a vector store."""
        caller, store_id = _named(request)
        change = parse_body(VectorStoreChange, await read_body(request, _MOST_BYTES))
        return answer_model(await self._service.change_store(caller.tenant, store_id, change), caller)

    async def delete_store(self, request: Request) -> Response:
        """Delete a vector store."""
        caller, store_id = _named(request)
        await self._service.delete_store(caller.tenant, store_id)
        return answer_model(DeletedVectorStore(id=store_id), caller)

    async def search_store(self, request: Request) -> Response:
        """Answer the hits of one query or several, the best of each chunk."""
        caller, store_id = _named(request)
        wanted = parse_body(VectorStoreSearch, await read_body(request, _MOST_BYTES))
        queries = [wanted.query] if isinstance(wanted.query, str) else wanted.query
        if not 1 <= len(queries) <= MOST_QUERIES or not all(queries):
            message = f"`query` must be a text, or 1 to {MOST_QUERIES} texts."
            raise RoundhouseError("invalid_request", message, param="query")
        await self._service.use_store(caller.tenant, store_id)
        reranks = self._search.has_rerank_model
        results = [
            await self._search.search(caller.tenant, (store_id,), build_search(wanted, query, has_reranker=reranks))
            for query in queries
        ]
        return answer_model(merge_results(wanted, queries, results), caller)

    async def add_file(self, request: Request) -> Response:
        """Add a file to a vector store."""
        caller, store_id = _named(request)
        new = parse_body(NewVectorStoreFile, await read_body(request, _MOST_BYTES))
        return answer_model(await self._service.add_file(caller.tenant, store_id, new), caller)

    async def list_files(self, request: Request) -> Response:
        """Answer a page of a vector store's files."""
        caller, store_id = _named(request)
        files, has_more = await self._service.list_files(
            caller.tenant,
            store_id,
            after=request.query_params.get("after"),
            limit=read_integer(request, "limit", 20, 1, 100),
            is_ascending=read_choice(request, "order", ("asc", "desc")) == "asc",
            status=read_choice(request, "filter", _STATUSES),
        )
        return answer_model(_page_of(files, has_more=has_more), caller)

    async def get_file(self, request: Request) -> Response:
        """Answer a file of a vector store."""
        caller, store_id = _named(request)
        file = await self._service.get_file(caller.tenant, store_id, request.path_params["file_id"])
        return answer_model(file, caller)

    async def change_file(self, request: Request) -> Response:
        """Replace the attributes of a file."""
        caller, store_id = _named(request)
        change = parse_body(AttributesChange, await read_body(request, _MOST_BYTES))
        file = await self._service.change_attributes(
            caller.tenant, store_id, request.path_params["file_id"], change.attributes or {}
        )
        return answer_model(file, caller)

    async def remove_file(self, request: Request) -> Response:
        """Remove a file from a vector store."""
        caller, store_id = _named(request)
        file_id = request.path_params["file_id"]
        await self._service.remove_file(caller.tenant, store_id, file_id)
        return answer_model(DeletedVectorStoreFile(id=file_id), caller)

    async def get_content(self, request: Request) -> Response:
        """Answer the text that was made of a file."""
        caller, store_id = _named(request)
        text = await self._service.read_text(caller.tenant, store_id, request.path_params["file_id"])
        return answer_model(FileContent(data=[TextContent(text=text)]), caller)

    async def add_batch(self, request: Request) -> Response:
        """Add files together."""
        caller, store_id = _named(request)
        new = parse_body(NewFileBatch, await read_body(request, _MOST_BYTES))
        return answer_model(await self._service.add_batch(caller.tenant, store_id, new), caller)

    async def get_batch(self, request: Request) -> Response:
        """Answer a batch."""
        caller, store_id = _named(request)
        batch = await self._service.get_batch(caller.tenant, store_id, request.path_params["batch_id"])
        return answer_model(batch, caller)

    async def cancel_batch(self, request: Request) -> Response:
        """Stop indexing the files of a batch."""
        caller, store_id = _named(request)
        batch = await self._service.cancel_batch(caller.tenant, store_id, request.path_params["batch_id"])
        return answer_model(batch, caller)

    async def list_batch_files(self, request: Request) -> Response:
        """Answer the files of a batch, all on one page."""
        caller, store_id = _named(request)
        files = await self._service.list_batch_files(caller.tenant, store_id, request.path_params["batch_id"])
        status = read_choice(request, "filter", _STATUSES)
        wanted = [file for file in files if status is None or file.status == status]
        return answer_model(_page_of(wanted, has_more=False), caller)


def _named(request: Request) -> tuple[RequestCaller, str]:
    return read_caller(request), request.path_params["vector_store_id"]


def _page_of(files: list[VectorStoreFile], *, has_more: bool) -> VectorStoreFileList:
    ids = [file.id for file in files]
    return VectorStoreFileList(
        data=files, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more
    )
