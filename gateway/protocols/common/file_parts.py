"""Files in an inference request: texts, PDFs, and kept files that it names by id. Pure.

A PDF is `input_file` in responses, `file` in chat completions and `document` in messages. It may stand wherever content
has parts, also in a tool's result. Texts in base64 are decoded here; PDFs are found here and read elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import describe_value, field_error, require_text
from gateway.protocols.common.request import CONTENT_HOLDERS, PART_LISTS

FILE_TYPES: Final = frozenset(("input_file", "file", "document"))
"""Types of content parts that are files."""
_TEXT_URL: Final = re.compile(r"(?i)data:(text/[\w.+-]+|application/(?:json|xml|yaml))?(?:;[\w-]+=[\w-]+)*;base64,")
_PDF_URL: Final = re.compile(r"(?i)data:application/pdf(?:;[\w-]+=[^;,]*)*;base64,")
_PDF_BEGINS: Final = "JVBERi"
"""Start of every PDF in base64: `%PDF` and a little more."""
_NAMING: Final = {
    "input_file": ("", "file_data"),
    "input_image": ("", "image_url"),
    "file": ("file", "file_data"),
    "document": ("source", "data"),
    "image": ("source", "data"),
}
"""Of content parts that may name a kept file, by type: the field of the object that does (empty: the part itself), and
that object's field for data in the id's place."""
NAMING_TYPES: Final = frozenset(_NAMING)
"""Types of content parts that may name a kept file by its id."""
_KEPT_ID: Final = re.compile(r"file-[0-9a-f]{32}")
_IMAGES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
"""How the content of images begins, by media type."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A PDF in a decoded request, found by `find_files`. Valid as long as the request's fields are not rebuilt."""

    place: str
    """Place of its data, such as `input[0].content[1].file_data`; for errors."""
    data: str
    """The PDF in base64."""
    name: str | None
    """File name or title; None: the request gives none."""
    parts: list[Any]
    """The list of content parts that holds the PDF."""
    index: int
    """Position of the PDF in `parts`."""

    def put_text(self, text: str) -> None:
        """Replace the PDF by a part of the same API family that holds `text`, in place in the request's decoded fields.
        Call once; the caller must encode the request again."""
        part = self.parts[self.index]
        kind = part["type"]
        if kind == "document":  # a document keeps its title, so the text needs no heading
            self.parts[self.index] = {**part, "source": {"type": "text", "media_type": "text/plain", "data": text}}
        else:
            told_text = f"Text of the file {self.name}:\n\n{text}" if self.name else text
            self.parts[self.index] = {"type": "input_text" if kind == "input_file" else "text", "text": told_text}


class FoundFiles(NamedTuple):
    """The files of a request, as `find_files` returns them."""

    pdfs: list[FilePart]
    """The PDFs, in the order of the request, whose text is still to be read."""
    has_changed: bool
    """Whether text files of chat completions were replaced by their text, so that the request must be encoded again."""


def find_files(fields: Fields) -> FoundFiles:
    """Return the PDFs of a decoded request, in order, and leave them in place. Text files in chat completions are
    replaced by their text, in `fields`; those of other API families are left for their dialects. If the result says
    `has_changed`, the caller must encode the request again.

    `fields` must be those of the whole body, not of an outline.

    Raises:
        RoundhouseError: a file of chat completions is neither PDF nor text (`modality_unsupported`), or is no base64 or
            named by an id alone (`invalid_request`). `param` is the path to its data or id, such as
            `messages[0].content[1].file.file_data`.
    """
    pdfs: list[FilePart] = []
    has_changed = False
    for part, place, parts, index in _list_parts(fields):
        pdfs += _read_part(part, place, parts, index)
        has_changed = has_changed or parts[index] is not part
    return FoundFiles(pdfs, has_changed)


def _list_parts(fields: Fields) -> Iterator[tuple[Any, str, list[Any], int]]:
    """Yield each content part of a request with its place, the list that holds it, and its position there."""
    for name in CONTENT_HOLDERS:
        items = fields.get(name)
        for number, item in enumerate(items if isinstance(items, list) else ()):
            for parts, place in _part_lists(item, f"{name}[{number}]"):
                for index, part in enumerate(parts):
                    yield part, f"{place}[{index}]", parts, index


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A content part that names a kept file by its id, found by `find_named_files`. Valid as long as the request's
    fields are not rebuilt."""

    file_id: str
    place: str
    """Place of the object that holds the id, such as `input[0].content[1]`; for errors."""
    parts: list[Any]
    """The list of content parts that holds the part."""
    index: int
    """Position of the part in `parts`."""

    @property
    def id_place(self) -> str:
        """The path of the id in the client's request, such as `input[0].content[1].file_id`, for `param` of errors."""
        return f"{self.place}.file_id"

    @property
    def is_kept_id(self) -> bool:
        """Whether the id has the form of those that are given here. Other servers' have not."""
        return _KEPT_ID.fullmatch(self.file_id) is not None

    def put_content(self, content: bytes, filename: str, *, takes_files: bool) -> None:
        """Put the file's content in the id's place, in the request's decoded fields, as if the client had sent it.
        `filename`: for a part that has none. `takes_files`: the engine reads files itself; else the id stays beside a
        PDF, for errors. Call once; the caller must encode the request again.

        Raises RoundhouseError `modality_unsupported` for content that does not suit the part; `param` is the id's path.
        """
        part, place = self.parts[self.index], self.id_place
        image = next((kind for kind, start in _IMAGES.items() if start.match(content)), None)
        if part["type"] in ("input_image", "image"):
            if image is None:
                message = "An image must be a PNG, JPEG, GIF or WebP file, which this one is not."
                raise RoundhouseError("modality_unsupported", message, param=place)
            self._put_data(image, content)
        elif image is not None:
            raise _not_text(place, "it is an image, which a part for images may name")
        elif content.startswith(b"%PDF"):
            self._put_data("application/pdf", content, filename, keeps_id=not takes_files)
        elif part["type"] == "document":
            source = {"type": "text", "media_type": "text/plain", "data": _decode_utf8(content, place)}
            self.parts[self.index] = {**part, "source": source}
        else:
            _decode_utf8(content, place)
            self._put_data("text/plain", content, filename)

    def _put_data(self, media_type: str, content: bytes, filename: str = "", *, keeps_id: bool = False) -> None:
        part, data = self.parts[self.index], base64.b64encode(content).decode()
        holder_name, data_name = _NAMING[part["type"]]
        kept: Fields = {"file_id": self.file_id} if keeps_id else {}
        if holder_name == "source":
            filled = {"type": "base64", "media_type": media_type, "data": data, **kept}
        else:
            holder = part[holder_name] if holder_name else part
            others = {name: value for name, value in holder.items() if name != "file_id"}
            if filename and not others.get("filename"):
                others["filename"] = filename
            filled = {**others, **kept, data_name: f"data:{media_type};base64,{data}"}
        self.parts[self.index] = {**part, holder_name: filled} if holder_name else filled


def find_named_files(fields: Fields) -> list[NamedFile]:
    """Return the parts of a decoded request that name a kept file, in order; those that hold data, too, name none. An
    outline of the fields suffices, but only parts of the whole fields can be changed. Raises RoundhouseError
    `invalid_request` for an id that is no text or empty; `param` is its path, such as
    `messages[0].content[1].source.file_id`."""
    found = []
    for part, place, parts, index in _list_parts(fields):
        kind = part.get("type") if isinstance(part, dict) else None
        holder_name, data_name = _NAMING.get(kind, ("", "")) if isinstance(kind, str) else ("", "")
        holder = part.get(holder_name) if holder_name else part
        if not data_name or not isinstance(holder, dict):
            continue
        is_named = holder.get("type") == "file" if holder_name == "source" else holder.get("file_id") is not None
        if is_named and holder.get(data_name) is None:
            at = f"{place}.{holder_name}" if holder_name else place
            found.append(NamedFile(require_text(holder.get("file_id"), f"{at}.file_id"), at, parts, index))
    return found


def _part_lists(holder: Any, place: str) -> Iterator[tuple[list[Any], str]]:
    """Yield each list of content parts in a message, an item or a part, at any depth that a family allows, with its
    place."""
    for name in PART_LISTS:
        parts = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(parts, list):
            yield parts, f"{place}.{name}"
            for index, part in enumerate(parts):
                if isinstance(part, dict) and part.get("type") == "tool_result":
                    yield from _part_lists(part, f"{place}.{name}[{index}]")


def _read_part(part: Any, place: str, parts: list[Any], index: int) -> Iterator[FilePart]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_file":
        yield from _pdf(part, place, parts, index)
    elif kind == "document" and isinstance(source := part.get("source"), dict) and source.get("type") == "base64":
        data, name = source.get("data"), part.get("title")
        if isinstance(data, str) and source.get("media_type") == "application/pdf":
            place = _data_place(source, "data", f"{place}.source")
            yield FilePart(place, data, name if isinstance(name, str) else None, parts, index)
    elif kind == "file" and isinstance(file := part.get("file"), dict):
        place = f"{place}.file"
        pdfs = list(_pdf(file, place, parts, index))
        if not pdfs:
            parts[index] = {"type": "text", "text": _chat_text(file, place)}
        yield from pdfs


def _data_place(holder: Fields, field: str, place: str) -> str:
    """Return the place of a file's data, or of the id that it was put beside (`NamedFile.put_content`)."""
    return f"{place}.{field if holder.get('file_id') is None else 'file_id'}"


def _pdf(holder: Fields, place: str, parts: list[Any], index: int) -> Iterator[FilePart]:
    data, name = holder.get("file_data"), holder.get("filename")
    if not isinstance(data, str):
        return
    head = _PDF_URL.match(data)
    if head is not None or data.startswith(_PDF_BEGINS):
        encoded = data[head.end() :] if head is not None else data
        place = _data_place(holder, "file_data", place)
        yield FilePart(place, encoded, name if isinstance(name, str) else None, parts, index)


def _chat_text(file: Fields, place: str) -> str:
    if file.get("file_data") is None and file.get("file_id") is not None:
        raise no_files(f"{place}.file_id", "`file_data`")
    data = file.get("file_data")
    if not isinstance(data, str):
        raise field_error(f"{place}.file_data", f"must be a string; {describe_value(data)}")
    return decode_text(data, f"{place}.file_data")


def decode_text(data: str, place: str) -> str:
    """Return the text of a text file from its base64, which may stand in a `data:` URL. Raises RoundhouseError
    `modality_unsupported` if the URL's media type is no text, or the data is not UTF-8; `invalid_request` if the data
    is no base64."""
    head = _TEXT_URL.match(data)
    if head is None and data.startswith("data:"):
        raise _not_text(place, f"it is {data.partition(',')[0]!r:.60}")
    try:
        content = base64.b64decode(data[head.end() :] if head else data, validate=True)
    except (binascii.Error, ValueError):
        raise field_error(place, "must be base64, or a data: URL in base64") from None
    return _decode_utf8(content, place)


def _decode_utf8(content: bytes, place: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _not_text(place, "it is not UTF-8") from None


def no_files(place: str, alternative: str) -> RoundhouseError:
    """Return, and do not raise, the RoundhouseError `invalid_request` for a file that is only named by an id or a URL:
    nothing is fetched, and ids of kept files are replaced before (`find_named_files`). `place` is the path to that id
    or URL in the request; `alternative` is what to send instead, such as "`file_data`"."""
    return field_error(
        place, f"names a file that is kept or fetched elsewhere, which is not done here: send {alternative}"
    )


def _not_text(place: str, reason: str) -> RoundhouseError:
    message = f"Of files, texts (text/*, JSON, XML, YAML; UTF-8) and PDFs alone are taken: {reason}."
    return RoundhouseError("modality_unsupported", message, param=place)
