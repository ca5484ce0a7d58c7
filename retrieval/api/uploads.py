"""A document in a request: JSON with text, or `multipart/form-data` with a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from controller.schema.errors import RoundhouseError
from retrieval.api.requests import parse_body, parse_fields, read_body
from retrieval.documents.service import DocumentFields
from retrieval.schema.documents import NewDocument

_PART: Final = 256 * 1024
_FIELD_BYTES: Final = 1024 * 1024
_DOCUMENT_FIELDS: Final = ("id", "filename", "metadata", "chunking")
_FORM: Final = "multipart/form-data"
_TEXT_TYPE: Final = "text/markdown"
"""Of a document that is sent as text: Markdown's headings are used, and plain text is Markdown."""


@asynccontextmanager
async def open_upload(request: Request, max_bytes: int) -> AsyncIterator[tuple[DocumentFields, AsyncIterator[bytes]]]:
    """Read a request with a document. Yield its fields, and the content in parts.

    `max_bytes`: of the content; a form may be a little larger.

    Raises:
        RoundhouseError: `body_too_large`, `invalid_json`, or `invalid_request` for a malformed form or field.
        ClientDisconnect: the client left.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.lower().startswith(_FORM):
        async with open_form(request, max_bytes, _DOCUMENT_FIELDS) as (values, file):
            yield _form_fields(values, file), file_parts(file)
    else:
        # Escaped, each byte of a text may take six.
        new = parse_body(NewDocument, await read_body(request, 6 * max_bytes + _FIELD_BYTES))
        yield _fields_of(new), _one_part(new.text.encode(errors="surrogatepass"))


@asynccontextmanager
async def open_form(
    request: Request, max_bytes: int, fields: Collection[str]
) -> AsyncIterator[tuple[dict[str, str], UploadFile]]:
    """Read a form with a `file`. Yield its other fields, and the file, which is deleted when the block ends.

    `max_bytes`: of the file. `fields`: names that the form may have.

    Raises:
        RoundhouseError: `document_too_large`, or `invalid_request` for a malformed form or an unknown field.
        ClientDisconnect: the client left.
    """
    bounded = Request(request.scope, _bound(request, max_bytes + 2 * _FIELD_BYTES))
    try:
        form = await bounded.form(max_files=1, max_fields=len(fields), max_part_size=_FIELD_BYTES)
    except (MultiPartException, HTTPException) as error:
        reason = error.detail if isinstance(error, HTTPException) else error.message
        raise RoundhouseError("invalid_request", f"The form is malformed: {reason}") from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise RoundhouseError("invalid_request", "The form has no `file`.", param="file")
        values: dict[str, str] = {}
        for name, value in form.items():
            if name == "file":
                continue
            if name not in fields:
                raise RoundhouseError("invalid_request", f"The form has the unknown field {name!r:.80}.")
            if not isinstance(value, str):
                raise RoundhouseError("invalid_request", f"`{name}` must be text.", param=name)
            values[name] = value
        yield values, file
    finally:
        await form.close()


def media_type_of(file: UploadFile) -> str | None:
    """Return the type that a client declares for a file; None where it says nothing of use."""
    media_type = (file.content_type or "").partition(";")[0].strip().lower()
    return None if media_type in ("", "application/octet-stream") else media_type


def _fields_of(new: NewDocument, media_type: str | None = _TEXT_TYPE) -> DocumentFields:
    chunking = new.chunking
    return DocumentFields(
        new.id,
        new.filename,
        media_type,
        new.metadata,
        None if chunking is None else chunking.max_tokens,
        None if chunking is None else chunking.overlap_tokens,
    )


def _form_fields(values: Mapping[str, str], file: UploadFile) -> DocumentFields:
    fields: dict[str, Any] = {"text": "", "filename": file.filename or None}
    for name, value in values.items():
        fields[name] = _parse_json(name, value) if name in ("metadata", "chunking") else value
    return _fields_of(parse_fields(NewDocument, json.dumps(fields)), media_type_of(file))


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise RoundhouseError("invalid_request", f"`{name}` must be JSON.", param=name) from None


def _bound(request: Request, most: int) -> Any:
    taken = 0

    async def receive() -> Any:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise RoundhouseError("document_too_large", "The file is larger than this server takes.")
        return message

    return receive


async def _one_part(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def file_parts(file: UploadFile) -> AsyncIterator[bytes]:
    """Yield an uploaded file's content in parts."""
    while part := await file.read(_PART):
        yield part
