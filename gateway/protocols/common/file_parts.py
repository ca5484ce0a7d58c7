"""Finds files in requests of any API family and puts their text in their place. Pure.

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

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import describe_value, field_error

_KINDS: Final = ("input_file", "file", "document")
"""Types of content parts that are files."""
_HOLDERS: Final = ("messages", "input")
"""Fields of requests that list messages or items."""
_TEXT_URL: Final = re.compile(r"(?i)data:(text/[\w.+-]+|application/(?:json|xml|yaml))?(?:;[\w-]+=[\w-]+)*;base64,")
_PDF_URL: Final = re.compile(r"(?i)data:application/pdf(?:;[\w-]+=[^;,]*)*;base64,")
_PDF_BEGINS: Final = "JVBERi"
"""Start of every PDF in base64: `%PDF` and a little more."""
_INNER: Final = ("content", "output")
"""Fields that list content parts: of messages and tool results, and of results in responses."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A PDF in a decoded request, found by `find_files`: its base64 (`data`), its name (None: the request gives none),
    and its place. Refers into the request's fields, so it is valid as long as these are not rebuilt."""

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


def holds_files(fields: Fields) -> bool:
    """Whether a decoded request has content parts of a file type, whatever their form. Runs for every request; costs
    one look at each message and part. False if the first message or item is no object."""
    for name in _HOLDERS:
        items = fields.get(name)
        if type(items) is list and items and type(items[0]) is dict:  # else texts or tokens to embed
            for item in items:
                if type(item) is dict:
                    for inner_name in _INNER:
                        parts = item.get(inner_name)
                        if type(parts) is list and _has_file(parts):
                            return True
    return False


def _has_file(parts: list[Any]) -> bool:
    for part in parts:
        if type(part) is dict:
            kind = part.get("type")
            if kind in _KINDS:
                return True
            if kind == "tool_result" and type(part.get("content")) is list and _has_file(part["content"]):
                return True
    return False


class FoundFiles(NamedTuple):
    """What `find_files` found in a request and did to it. `has_changed`: it replaced text files by their text, so that
    the request must be encoded again."""

    pdfs: list[FilePart]
    has_changed: bool
    """Whether text files of chat completions were replaced by their text."""


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
    for name in _HOLDERS:
        items = fields.get(name)
        for number, item in enumerate(items if isinstance(items, list) else ()):
            for parts, place in _part_lists(item, f"{name}[{number}]"):
                for index, part in enumerate(parts):
                    pdfs += _read_part(part, f"{place}[{index}]", parts, index)
                    has_changed = has_changed or parts[index] is not part
    return FoundFiles(pdfs, has_changed)


def _part_lists(holder: Any, place: str) -> Iterator[tuple[list[Any], str]]:
    """Yield each list of content parts in a message, an item or a part, at any depth that a family allows, with its
    place."""
    for name in _INNER:
        parts = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(parts, list):
            yield parts, f"{place}.{name}"
            for index, part in enumerate(parts):
                if isinstance(part, dict) and part.get("type") == "tool_result":
                    yield from _part_lists(part, f"{place}.{name}[{index}]")


def _read_part(part: Any, place: str, parts: list[Any], index: int) -> Iterator[FilePart]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_file":
        yield from _pdf(part.get("file_data"), f"{place}.file_data", part.get("filename"), parts, index)
    elif kind == "document" and isinstance(source := part.get("source"), dict) and source.get("type") == "base64":
        data, name = source.get("data"), part.get("title")
        if isinstance(data, str) and source.get("media_type") == "application/pdf":
            yield FilePart(f"{place}.source.data", data, name if isinstance(name, str) else None, parts, index)
    elif kind == "file" and isinstance(file := part.get("file"), dict):
        place = f"{place}.file"
        pdfs = list(_pdf(file.get("file_data"), f"{place}.file_data", file.get("filename"), parts, index))
        if not pdfs:
            parts[index] = {"type": "text", "text": _chat_text(file, place)}
        yield from pdfs


def _pdf(data: Any, place: str, name: Any, parts: list[Any], index: int) -> Iterator[FilePart]:
    head = _PDF_URL.match(data) if isinstance(data, str) else None
    if head is not None or (isinstance(data, str) and data.startswith(_PDF_BEGINS)):
        encoded = data[head.end() :] if head is not None else data
        yield FilePart(place, encoded, name if isinstance(name, str) else None, parts, index)


def _chat_text(file: Fields, place: str) -> str:
    if file.get("file_data") is None and file.get("file_id") is not None:
        raise no_files(f"{place}.file_id", "`file_data`")
    data = file.get("file_data")
    if not isinstance(data, str):
        raise field_error(f"{place}.file_data", f"must be a string; {describe_value(data)}")
    return decode_text(data, f"{place}.file_data")


def decode_text(data: str, place: str) -> str:
    """Return the text of a text file from its base64, which may stand in a `data:` URL. `place` is its path in
    the request, for errors.

    Raises:
        RoundhouseError: `modality_unsupported`: the URL's media type is no text, or the data is not UTF-8.
            `invalid_request`: the data is no base64.
    """
    head = _TEXT_URL.match(data)
    if head is None and data.startswith("data:"):
        raise _not_text(place, f"it is {data.partition(',')[0]!r:.60}")
    try:
        return base64.b64decode(data[head.end() :] if head else data, validate=True).decode()
    except UnicodeDecodeError:
        raise _not_text(place, "it is not UTF-8") from None
    except (binascii.Error, ValueError):
        raise field_error(place, "must be base64, or a data: URL in base64") from None


def no_files(place: str, alternative: str) -> RoundhouseError:
    """Return, and do not raise, the RoundhouseError `invalid_request` for a file that is only named by an id or a URL:
    the gateway neither stores nor fetches files. `place` is the path to that id or URL in the request; `alternative` is
    what to send instead, such as "`file_data`"."""
    return field_error(
        place, f"names a file that is kept or fetched elsewhere, which is not done here: send {alternative}"
    )


def _not_text(place: str, reason: str) -> RoundhouseError:
    message = f"Of files, texts (text/*, JSON, XML, YAML; UTF-8) and PDFs alone are taken: {reason}."
    return RoundhouseError("modality_unsupported", message, param=place)
