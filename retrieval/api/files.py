"""/v1/files: OpenAI's files."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from controller.schema.errors import RoundhouseError
from retrieval.api.file_names import build_disposition
from retrieval.api.form_parser import FORM_TYPE
from retrieval.api.requests import (
    Handlers,
    answer_model,
    read_caller,
    read_choice,
    read_integer,
    tenant_headers,
)
from retrieval.api.uploads import open_form
from retrieval.catalog.originals import Originals
from retrieval.file_search.file_service import LONGEST_LIFE_S, SHORTEST_LIFE_S, FileService
from retrieval.file_search.views import build_file
from retrieval.schema.files import DeletedFile, FileList
from retrieval.schema.routes import FILE, FILES

_FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_PURPOSES: Final = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
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
            if values.get("purpose") not in _PURPOSES:
                message = f"`purpose` must be one of {', '.join(_PURPOSES)}."
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
        # Never shown by a browser as a page of this address.
        return FileResponse(
            self._service.original_of(file),
            headers={
                **tenant_headers(caller),
                "x-content-type-options": "nosniff",
                "content-disposition": build_disposition(file.filename, "file"),
            },
            media_type="application/octet-stream",
        )


def _check_form(request: Request) -> None:
    if not request.headers.get("content-type", "").lower().startswith(FORM_TYPE):
        raise RoundhouseError("invalid_request", f"Send `{FORM_TYPE}` with a `file`.", param="file")


def _life_of(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not SHORTEST_LIFE_S <= int(text) <= LONGEST_LIFE_S:
        message = f"`expires_after[seconds]` must be an integer from {SHORTEST_LIFE_S} to {LONGEST_LIFE_S}."
        raise RoundhouseError("invalid_request", message, param="expires_after[seconds]")
    return int(text)
