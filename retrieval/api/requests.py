"""What handlers read of requests, and how they answer: JSON, or `multipart/form-data` with one file, which is written
to the originals' folder as it arrives, so that keeping it is a rename.

A file's name ends up in a file dialog and in a folder of somebody, so it has no path, and nothing that is not seen:
control characters, or marks that turn the direction of text and make `exe.txt` of `txt.exe`.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from contract.documents import NewDocument
from contract.errors import RoundhouseError
from contract.retrieval import ADMIN_HEADER, ANSWERED_TENANT_HEADER, TENANT_HEADER
from retrieval.catalog.originals import IncomingOriginal, Originals
from retrieval.documents import DocumentFields, storage_error

MOST_NAME_BYTES: Final = 240
"""Bytes of a name in UTF-8; file systems take 255."""
_LONGEST_SUFFIX: Final = 20
_UNSEEN: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_JOINERS: Final = "\u200c\u200d"
"""Unseen as well, but parts of words and emoji."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9 !#$&'()+,.;=@\[\]^_`{}~-]+", re.ASCII)
"""A name that stands between quotation marks as it is, in the eyes of every client."""


def clean_file_name(text: str) -> str | None:
    """Return the last part of a path without unseen characters, at most `MOST_NAME_BYTES` bytes long; None: nothing is
    left that can be a name. Both `/` and `\\` part a path. If the name is cut, a suffix of at most 20 characters stays.
    """
    last = re.split(r"[/\\]", text)[-1]
    seen = "".join(each for each in last if each in _JOINERS or unicodedata.category(each) not in _UNSEEN)
    name = seen.strip(" ").rstrip(". ")
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > _LONGEST_SUFFIX:
        stem, dot, suffix = name, "", ""
    end = f"{dot}{suffix}".encode()
    cut = stem.encode()[: MOST_NAME_BYTES - len(end)].decode(errors="ignore")
    return f"{cut}{dot}{suffix}" if cut.strip(f"{_JOINERS} .") else None


def build_disposition(name: str, default: str) -> str:
    """Return the value of the header `Content-Disposition` for a download (RFC 6266): `name` as `clean_file_name`
    leaves it, or `default`, which must be ASCII, if nothing is left. A name that is not plain ASCII comes in two forms:
    as it is, and for old clients with `_` in place of what they cannot read."""
    cleaned = clean_file_name(name) or default
    if _PLAIN.fullmatch(cleaned):
        return f'attachment; filename="{cleaned}"'
    plain = "".join(each if _PLAIN.fullmatch(each) else "_" for each in cleaned)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(cleaned, safe='')}"


FILE_FIELD: Final = "file"
FORM_TYPE: Final = "multipart/form-data"
_LONGEST_CHARSET: Final = 40
LONGEST_FIELD: Final = 1024 * 1024
"""Bytes of a field that is no file."""


class FormError(Exception):
    """A form is malformed, or has a part that it must not have. The text is a sentence for the client. `field`: name of
    the field that is at fault; None: the form as a whole."""

    def __init__(self, message: str, field: str | None = None) -> None:
        """`message`: a sentence. `field`: the one that is at fault; None: the form as a whole."""
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """What a client says of a file in a form."""

    filename: str | None
    """As `clean_file_name` leaves it; None: nothing is left."""
    media_type: str | None
    """Without parameters, in lower case; None: none, or `application/octet-stream`."""


class FormParser:
    """Parses one form. Give each part of the body to `feed`, store the bytes of the file that it returns, and call
    `finish` at the end. Do not use the parser after a FormError."""

    def __init__(self, content_type: str, fields: Collection[str]) -> None:
        """`content_type`: the request's header. `fields`: names that the form may have beside `file`. Raises FormError
        where the header names no boundary, or one that cannot be used."""
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise FormError("The form is malformed: its Content-Type names no boundary.")
        self._fields = fields
        self._values: dict[str, str] = {}
        self._file: UploadedFile | None = None
        self._headers: dict[bytes, bytes] = {}
        self._header_name, self._header_value = b"", b""
        self._part_name: str | None = None
        """None: the part is the file."""
        self._part_value = bytearray()
        self._content: list[bytes] = []
        self._has_ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_header_name,
                    "on_header_value": self._add_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise FormError(f"The form is malformed: {error}") from None

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes of the body. Return those that belong to the content of the file, in their order; the
        list may be empty. Raises FormError for a malformed form, a second file, and a field that is unknown, comes
        twice or is longer than `LONGEST_FIELD` bytes. Do not use the parser after that."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise FormError(f"The form is malformed: {error}") from None
        content, self._content = self._content, []
        return content

    def finish(self) -> tuple[dict[str, str], UploadedFile]:
        """Return the values of the fields by name, and what the client said of the file; its content came from `feed`.
        Call it once, when the whole body was fed. Raises FormError where the form ended early or had no file."""
        if not self._has_ended:
            raise FormError("The form is malformed: it ends before its last boundary.")
        if self._file is None:
            raise FormError("The form has no `file`.", FILE_FIELD)
        return self._values, self._file

    def _begin_part(self) -> None:
        self._headers = {}
        self._part_value = bytearray()

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name, self._header_value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        if b"name" not in options:
            raise FormError("The form is malformed: a part has no name.")
        name = _decode(options[b"name"])
        if name == FILE_FIELD and b"filename" in options:
            if self._file is not None:
                raise FormError("The form has more than one `file`.", FILE_FIELD)
            declared = _decode(self._headers.get(b"content-type", b""))
            self._file = UploadedFile(clean_file_name(_decode(options[b"filename"])), _read_media_type(declared))
            self._part_name = None
            return
        if name == FILE_FIELD:
            raise FormError("The form's `file` is no file: it has no file name.", FILE_FIELD)
        if name not in self._fields:
            raise FormError(f"The form has the unknown field {name!r:.80}.", name[:80])
        if name in self._values:
            raise FormError(f"The form has `{name}` twice.", name)
        if b"filename" in options:
            raise FormError(f"`{name}` must be text.", name)
        self._part_name = name

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._part_name is None:
            self._content.append(data[start:end])
            return
        if len(self._part_value) + end - start > LONGEST_FIELD:
            raise FormError(f"`{self._part_name}` is longer than {LONGEST_FIELD} bytes.", self._part_name)
        self._part_value += data[start:end]

    def _end_part(self) -> None:
        if self._part_name is not None:
            self._values[self._part_name] = _decode(bytes(self._part_value))

    def _end(self) -> None:
        self._has_ended = True


def _read_media_type(declared: str) -> str | None:
    """Return the type with its charset, if it names one, and without other parameters."""
    media_type, parameters = parse_options_header(declared)
    if media_type in (b"", b"application/octet-stream"):
        return None
    charset = parameters.get(b"charset", b"")[:_LONGEST_CHARSET]
    return _decode(media_type + b"; charset=" + charset if charset else media_type)


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


Handler = Callable[[Request], Awaitable[Response]]
Handlers = Mapping[tuple[str, str], Handler]
"""Handlers by (method, path), both as `RouteSpec` has them."""

MIB: Final = 1024 * 1024
_TRUE: Final = ("true", "1")
_FALSE: Final = ("false", "0")

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RequestCaller:
    """The client for whom the gateway asks: its tenant, and whether it has the scope `admin`."""

    tenant: str
    is_admin: bool
    """Whether the caller may see and delete other tenants."""


def read_caller(request: Request) -> RequestCaller:
    """Return the client for whom the gateway asks, from the gateway's headers, which are trusted. Raises
    RoundhouseError `invalid_request` where a request names no tenant; the gateway's always name one."""
    tenant = request.headers.get(TENANT_HEADER)
    if not tenant:
        raise RoundhouseError("invalid_request", f"The header {TENANT_HEADER} is missing.")
    return RequestCaller(unquote(tenant), request.headers.get(ADMIN_HEADER) == "1")


async def read_body(request: Request, most: int) -> bytes:
    """Return the whole body, empty where there is none. Raises RoundhouseError `body_too_large` as soon as more than
    `most` bytes have come, and ClientDisconnect where the client leaves before the end."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise RoundhouseError("body_too_large", f"The body is larger than {most / MIB:g} MiB.")
        parts.append(part)
    return b"".join(parts)


def parse_body(model: type[Model], body: bytes) -> Model:
    """Parse a JSON body into the model. Raises RoundhouseError `invalid_json` for a body that is not JSON (an empty one
    too), and `invalid_request` for the first wrong field."""
    try:
        json.loads(body)
    except ValueError as error:
        raise RoundhouseError("invalid_json", f"The body is no JSON: {error}.") from None
    except RecursionError:
        raise RoundhouseError("invalid_json", "The body is nested too deeply.") from None
    return parse_fields(model, body)


def parse_fields(model: type[Model], body: bytes | str, prefix: str = "") -> Model:
    """Parse JSON text into the model. Raises RoundhouseError `invalid_request` for the first wrong field, and for text
    that is not JSON. `prefix` is put in front of the field's name in the error."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = prefix + ".".join(str(part) for part in first["loc"])
        raise RoundhouseError("invalid_request", f"`{field or 'body'}`: {first['msg']}.", param=field or None) from None


def read_boolean(request: Request, name: str) -> bool:
    """Return a boolean parameter of the query string: `true`, `false`, `1` or `0` in any case; False where it is
    missing. Raises RoundhouseError `invalid_request` for any other value."""
    value = request.query_params.get(name, "false").lower()
    if value not in (*_TRUE, *_FALSE):
        raise RoundhouseError("invalid_request", f"`{name}` must be true or false.", param=name)
    return value in _TRUE


def read_integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return an integer parameter of the query string; `default`, unchecked, where it is missing. Raises
    RoundhouseError `invalid_request` for any other text than a decimal integer without a sign, from `low` to `high`,
    both included."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
        raise RoundhouseError("invalid_request", f"`{name}` must be an integer from {low} to {high}.", param=name)
    return int(text)


def read_choice(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    """Return a parameter of the query string that is one of `choices`; None where it is missing. Raises RoundhouseError
    `invalid_request` for any other value, also an empty one."""
    value = request.query_params.get(name)
    if value is not None and value not in choices:
        raise RoundhouseError("invalid_request", f"`{name}` must be one of {', '.join(choices)}.", param=name)
    return value


def read_json_parameter(request: Request, name: str) -> Any:
    """Return the decoded value of a JSON parameter of the query string; None where it is missing, or is `null`. Raises
    RoundhouseError `invalid_request` for text that is not JSON."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RoundhouseError("invalid_request", f"`{name}` must be JSON.", param=name) from None


def answer_model(model: BaseModel, caller: RequestCaller, status: int = 200, **headers: str) -> Response:
    """Return an answer with the model as JSON, the header `x-tenant-id` with the caller's tenant, and `headers`. A
    header among `headers` replaces one of the same name."""
    return Response(
        model.model_dump_json(),
        status,
        headers={**tenant_headers(caller), **headers},
        media_type="application/json",
    )


def tenant_headers(caller: RequestCaller) -> dict[str, str]:
    """Return the header `x-tenant-id` for an answer: the caller's tenant, with `?` for every character that is not
    printable ASCII."""
    return {ANSWERED_TENANT_HEADER: header_text(caller.tenant)}


async def answer_file(path: Path, name: str, default: str, caller: RequestCaller) -> Response:
    """Return the answer with the bytes of a file, which no browser shows as a page of this address. `name`, `default`:
    of `build_disposition`. Raises FileNotFoundError where the file is gone."""
    return FileResponse(
        path,
        headers={
            **tenant_headers(caller),
            "x-content-type-options": "nosniff",
            "content-disposition": build_disposition(name, default),
        },
        media_type="application/octet-stream",
        stat_result=await asyncio.to_thread(path.stat),
    )


def header_text(text: str) -> str:
    """Return `text` with `?` for every character that is not printable ASCII, so that a header can carry it."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)


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
        None if new.filename is None else clean_file_name(new.filename),
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
