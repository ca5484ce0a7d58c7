"""What lists and searches need of an item: its text, and the item without its media. Pure."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gateway.protocols.common.conversation import Fields

SHOWN_AROUND: Final = 80
"""Maximum characters of a text that a hit shows on each side of what was found."""

_DATA_FIELDS: Final = {"input_image": "image_url", "input_file": "file_data"}
"""The field of a content part that may hold a data URL, by the part's type."""
_TEXT_FIELDS: Final = ("text", "refusal", "filename")
"""Fields of content parts that are searched."""
_ITEM_FIELDS: Final = {
    "message": ("content",),
    "function_call": ("name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("name", "input"),
    "custom_tool_call_output": ("output",),
    "mcp_call": ("name", "arguments", "output"),
}
"""Fields that are searched, by the type of the item. Thoughts, lists of tools and summaries are not."""


class Hit(NamedTuple):
    """Where a text has what was searched for, with at most `SHOWN_AROUND` characters on each side."""

    before: str
    match: str
    after: str


def text_of(item: Fields) -> str:
    """Return what a search finds in an item: the text of a message, or name, arguments and result of a call.

    Texts are separated by line breaks. Empty if the item has none. Values of a wrong type are skipped.
    """
    kind = item.get("type")
    names = _ITEM_FIELDS.get(kind, ()) if isinstance(kind, str) else ()
    return "\n".join(text for name in names for text in _texts_in(item.get(name)))


def without_media(item: Fields) -> Fields | None:
    """Return a copy of an item whose content parts have `omitted` in place of media data; None: it holds no such data.

    `omitted` has `media_type`, null where the part does not say it, and `bytes`, the length of the base64 text. An
    address of another server is no data and stays.
    """
    outlines: Fields = {}
    for name in ("content", "output"):
        parts = item.get(name)
        if isinstance(parts, list):
            new_parts = [_part_without_media(part) for part in parts]
            if any(new is not old for new, old in zip(new_parts, parts, strict=True)):
                outlines[name] = new_parts
    return {**item, **outlines} if outlines else None


def fold_text(text: str) -> bytes:
    """Return a text in the form in which texts are compared, in UTF-8: letters without case, and characters that
    Unicode holds compatible (full width, ligatures, composed accents) made equal. Halves of surrogate pairs are kept.
    """
    return (text.lower() if text.isascii() else _normal(text).casefold()).encode("utf-8", "surrogatepass")


def fold_words(query: str) -> tuple[bytes, ...]:
    """Return the words of a query, folded; empty if the query has none. White space separates words."""
    return tuple(dict.fromkeys(fold_text(word) for word in query.split()))


def find_hit(text: str, words: tuple[bytes, ...]) -> Hit | None:
    """Return the first place of the first of `words` in a text that holds all of them; None: it does not.

    `words`: from `fold_words`, at least one. The texts of the hit are in Unicode's normal form KC, with each run of
    white space as one blank.
    """
    folded = fold_text(text)
    if not all(word in folded for word in words):
        return None
    shown = _normal(text)
    before_match = folded[: folded.index(words[0])].decode("utf-8", "surrogatepass")
    start, end = _unfolded_range(shown, len(before_match), len(words[0].decode("utf-8", "surrogatepass")))
    before = _one_line(shown[max(0, start - SHOWN_AROUND) : start])
    return Hit(before, _one_line(shown[start:end]), _one_line(shown[end : end + SHOWN_AROUND]))


def _unfolded_range(text: str, folded_start: int, folded_length: int) -> tuple[int, int]:
    """Return where characters of the case-folded text lie in `text`, because folding may make one character several."""
    folded_end = folded_start + folded_length
    if len(text.casefold()) == len(text):
        return folded_start, folded_end
    ends = range(len(text) + 1)
    start = bisect_right(ends, folded_start, key=lambda end: len(text[:end].casefold())) - 1
    return start, bisect_left(ends, folded_end, key=lambda end: len(text[:end].casefold()))


def _normal(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _one_line(text: str) -> str:
    lead, trail = " " * text[:1].isspace(), " " * text[-1:].isspace()
    words = " ".join(text.split())
    return f"{lead}{words}{trail}" if words else lead


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts of a field that is a text, or a list of content parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, dict):
                yield from (part[name] for name in _TEXT_FIELDS if isinstance(part.get(name), str))


def _part_without_media(part: Any) -> Any:
    """Return the part itself if it holds no media data."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
        sound = part["input_audio"]
        data, form = sound.get("data"), sound.get("format")
        if isinstance(data, str):
            media_type = f"audio/{form}" if isinstance(form, str) else None
            others = {name: value for name, value in sound.items() if name != "data"}
            return {**part, "input_audio": others, "omitted": {"media_type": media_type, "bytes": len(data)}}
        return part
    name = _DATA_FIELDS.get(kind) if isinstance(kind, str) else None
    value = None if name is None else part.get(name)
    if not isinstance(value, str) or (kind == "input_image" and not value.startswith("data:")):
        return part
    head, _, data = value.rpartition(",")
    media_type = head.removeprefix("data:").split(";")[0] or None
    others = {key: each for key, each in part.items() if key != name}
    return {**others, "omitted": {"media_type": media_type, "bytes": len(data)}}
