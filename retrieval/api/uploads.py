"""A document in a request: JSON with text, or `multipart/form-data` with a file. Either is written to the originals'
folder as it arrives, so that keeping it is a rename."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import Request

from controller.schema.errors import RoundhouseError
from retrieval.api.form_parser import FORM_TYPE, LONGEST_FIELD, FormError, FormParser, UploadedFile
from retrieval.api.requests import MIB, parse_body, parse_fields, read_body
from retrieval.catalog.originals import IncomingOriginal, Originals
from retrieval.documents.service import DocumentFields, storage_error
from retrieval.schema.documents import NewDocument

_DOCUMENT_FIELDS: Final = ("id", "filename", "metadata", "chunking")
_TEXT_TYPE: Final = "text/markdown"
"""Of a document that is sent as text: Markdown's headings are used, and plain text is Markdown."""


@asynccontextmanager
async def open_upload(
    request: Request, max_bytes: int, originals: Originals
) -> AsyncIterator[tuple[DocumentFields, IncomingOriginal]]:
    """Read a request with a document, a form or JSON. Return an async context manager that yields the document's fields
    and its content; the content is removed when the block ends, unless it was kept (`IncomingOriginal.keep`).

    `max_bytes`: most bytes of the content.

    Raises:
        RoundhouseError: `document_too_large`, `body_too_large`, `invalid_json`, `invalid_request` for a malformed form
            or field, `storage_full`, `storage_failed`.
        ClientDisconnect: the client left.
    """
    if request.headers.get("content-type", "").lower().startswith(FORM_TYPE):
        async with open_form(request, max_bytes, _DOCUMENT_FIELDS, originals) as (values, file, incoming):
            yield _form_fields(values, file), incoming
        return
    # Escaped, each byte of a text may take six.
    new = parse_body(NewDocument, await read_body(request, 6 * max_bytes + LONGEST_FIELD))
    with await _begin(originals) as incoming:
        await _write(incoming, new.text.encode(errors="surrogatepass"), max_bytes)
        yield _fields_of(new), incoming


@asynccontextmanager
async def open_form(
    request: Request, max_bytes: int, fields: Collection[str], originals: Originals
) -> AsyncIterator[tuple[dict[str, str], UploadedFile, IncomingOriginal]]:
    """Read a form with a `file`. Return an async context manager that yields its other fields, what the client said of
    the file, and the file's content, which is removed when the block ends, unless it was kept. The request must have a
    header Content-Type.

    `max_bytes`: most bytes of the file. The whole form may have 1 MiB more, and another for each of `fields`, the names
    of the other fields that the form may have, each of at most 1 MiB; all are optional.

    Raises:
        RoundhouseError: `document_too_large`, `invalid_request` for a malformed form or an unknown field,
            `storage_full`, `storage_failed`.
        ClientDisconnect: the client left.
    """
    with await _begin(originals) as incoming:
        try:
            parser, read = FormParser(request.headers["content-type"], fields), 0
            async for data in request.stream():
                read += len(data)
                if read > max_bytes + (len(fields) + 1) * LONGEST_FIELD:
                    raise _too_large(max_bytes)
                if content := b"".join(parser.feed(data)):
                    await _write(incoming, content, max_bytes)
            values, file = parser.finish()
        except FormError as error:
            raise RoundhouseError("invalid_request", str(error), param=error.field) from None
        yield values, file, incoming


async def _begin(originals: Originals) -> IncomingOriginal:
    try:
        return await asyncio.to_thread(originals.begin_original)
    except OSError as error:
        raise storage_error(error) from None


async def _write(incoming: IncomingOriginal, content: bytes, max_bytes: int) -> None:
    if incoming.bytes + len(content) > max_bytes:
        raise _too_large(max_bytes)
    try:
        await asyncio.to_thread(incoming.write, content)
    except OSError as error:
        raise storage_error(error) from None


def _too_large(max_bytes: int) -> RoundhouseError:
    return RoundhouseError("document_too_large", f"The document is larger than {max_bytes / MIB:g} MiB.")


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


def _form_fields(values: Mapping[str, str], file: UploadedFile) -> DocumentFields:
    fields: dict[str, Any] = {"text": "", "filename": file.filename}
    for name, value in values.items():
        fields[name] = _parse_json(name, value) if name in ("metadata", "chunking") else value
    return _fields_of(parse_fields(NewDocument, json.dumps(fields)), file.media_type)


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RoundhouseError("invalid_request", f"`{name}` must be JSON.", param=name) from None
