"""A document in a request: JSON with text, or `multipart/form-data` with a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from controller.schema.errors import RoundhouseError
from retrieval.api.requests import parse_body, parse_fields, read_body
from retrieval.documents.service import DocumentFields
from retrieval.schema.documents import NewDocument

_PART: Final = 256 * 1024
_FIELD_BYTES: Final = 1024 * 1024
_FORM_FIELDS: Final = ("id", "filename", "metadata", "chunking")
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
    if not content_type.lower().startswith(_FORM):
        # Escaped, each byte of a text may take six.
        new = parse_body(NewDocument, await read_body(request, 6 * max_bytes + _FIELD_BYTES))
        yield _fields_of(new), _one_part(new.text.encode(errors="surrogatepass"))
        return
    bounded = Request(request.scope, _bound(request, max_bytes + 2 * _FIELD_BYTES))
    try:
        form = await bounded.form(max_files=1, max_fields=len(_FORM_FIELDS), max_part_size=_FIELD_BYTES)
    except MultiPartException as error:
        raise RoundhouseError("invalid_request", f"The form is malformed: {error.message}") from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise RoundhouseError("invalid_request", "The form has no `file`.", param="file")
        values = {name: value for name, value in form.items() if name != "file"}
        if unknown := [name for name in values if name not in _FORM_FIELDS]:
            raise RoundhouseError("invalid_request", f"The form has the unknown field {unknown[0]!r:.80}.")
        yield _form_fields(values, file), _file_parts(file)
    finally:
        await form.close()


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


def _form_fields(values: dict[str, Any], file: UploadFile) -> DocumentFields:
    fields: dict[str, Any] = {"text": ""}
    for name, value in values.items():
        if not isinstance(value, str):
            raise RoundhouseError("invalid_request", f"`{name}` must be text.", param=name)
        fields[name] = _parse_json(name, value) if name in ("metadata", "chunking") else value
    fields.setdefault("filename", file.filename or None)
    media_type = (file.content_type or "").partition(";")[0].strip().lower()
    # What clients send where they do not know.
    is_said = media_type not in ("", "application/octet-stream")
    return _fields_of(parse_fields(NewDocument, json.dumps(fields)), media_type if is_said else None)


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


async def _file_parts(file: UploadFile) -> AsyncIterator[bytes]:
    while part := await file.read(_PART):
        yield part
