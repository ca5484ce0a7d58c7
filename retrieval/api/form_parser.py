"""`multipart/form-data` with one file, parsed as it arrives. Whoever reads the request stores the file's bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from retrieval.api.file_names import clean_file_name

FILE_FIELD: Final = "file"
FORM_TYPE: Final = "multipart/form-data"
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
    media_type = declared.partition(";")[0].strip().lower()
    return None if media_type in ("", "application/octet-stream") else media_type


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
