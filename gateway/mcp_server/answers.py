"""What a tool answers: a JSON object and its text, both bounded. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from controller.schema.errors import RoundhouseError

Fields = dict[str, Any]

MOST_BYTES: Final = 32 * 1024
"""Largest answer of a tool in bytes of JSON: about 8,000 tokens, less than what clients cut an answer at."""
CUT: Final = "cut"
"""Field of an answer that did not fit: sentences that say what is missing."""
MOST_MESSAGE: Final = 4000
"""Characters of an error's message; the rest is left out, with `[...]`."""
_SENTENCE_BYTES: Final = 160
"""Room for one sentence."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of one call."""

    fields: Fields
    """The structured content."""
    text: str
    """The same for a client that reads text alone."""
    is_error: bool = False


def answer_fields(fields: Fields) -> ToolAnswer:
    """Return the answer of a call that succeeded. `fields`: values that JSON can hold. They are cleaned and cut to
    `MOST_BYTES` as by `clean_fields` and `fit_fields`; the text is the JSON of what is kept."""
    fitted = fit_fields(clean_fields(fields), MOST_BYTES)
    return ToolAnswer(fitted, json.dumps(fitted, ensure_ascii=False))


def answer_error(error: RoundhouseError, request_id: str) -> ToolAnswer:
    """Return the answer of a call that failed, with `is_error`: the error's envelope, and its code, message and next
    steps as text. A message of more than `MOST_MESSAGE` characters is cut."""
    body = clean_fields(error.build_envelope(request_id).model_dump()["error"])
    if len(body["message"]) > MOST_MESSAGE:
        body["message"] = f"{body['message'][:MOST_MESSAGE]} [...]"
    lines = [f"{body['code']}: {body['message']}", *(f"- {step}" for step in body["next_steps"])]
    return ToolAnswer({"error": body}, "\n".join(lines), is_error=True)


def clean_fields(fields: Fields) -> Fields:
    """Return a deep copy of the fields as JSON holds them (tuples become lists), with `?` for halves of surrogate
    pairs, which UTF-8 cannot encode. Raises TypeError for a value that JSON cannot hold."""
    cleaned: Fields = json.loads(json.dumps(fields, ensure_ascii=False).encode(errors="replace"))
    return cleaned


def fit_fields(fields: Fields, most_bytes: int) -> Fields:
    """Return a copy of the fields whose JSON, in UTF-8, has at most `most_bytes` bytes.

    Where they are larger, lists lose their last entries, texts their end, and other values are left out: the largest
    field first, each field once. The field `cut` then has a sentence for each; it alone is left where that does not
    suffice.
    """
    fitted, sentences = dict(fields), list[str]()
    while (excess := _size({**fitted, CUT: sentences} if sentences else fitted) - most_bytes) > 0:
        whole = [name for name in fitted if not any(each.startswith(f"`{name}`:") for each in sentences)]
        if not whole:
            return {CUT: ["`answer`: left out, because it did not fit."]}
        name = max(whole, key=lambda each: _size(fitted[each]))
        room = _size(fitted[name]) - excess - _SENTENCE_BYTES
        kept, sentence = _cut_value(fitted[name], room)
        sentences.append(f"`{name}`: {sentence}")
        if kept is None:
            del fitted[name]
        else:
            fitted[name] = kept
    return {**fitted, CUT: sentences} if sentences else fitted


def cut_log(log: bytes, left_out: int, most_bytes: int) -> str:
    """Return the end of a log as text, of at most about `most_bytes`, from the start of a line on.

    `left_out`: bytes before `log` that were left out already; above 0, the rest of a line at the beginning of `log` is
    dropped, too. If anything is left out, a first line, which comes on top of `most_bytes`, says how many bytes. What
    is no UTF-8 becomes replacement characters.
    """
    end = log[-most_bytes:]
    left_out += len(log) - len(end)
    if left_out and b"\n" in end[:-1]:
        start = end.index(b"\n") + 1
        left_out, end = left_out + start, end[start:]
    text = end.decode(errors="replace")
    if not left_out:
        return text
    return f"[{left_out} earlier bytes are left out: ask for fewer `lines`, or one `replica`]\n{text}"


def _cut_value(value: Any, room: int) -> tuple[Any, str]:
    if isinstance(value, list):
        size, count = 2, 0
        while count < len(value) and (size := size + _size(value[count]) + 2) <= room:
            count += 1
        return value[:count], f"{count} of {len(value)} entries, because not all fitted."
    if isinstance(value, str):
        kept = value
        while kept and (size := _size(kept)) > room:
            kept = kept[: max(0, len(kept) * max(0, room) // size - 1)]
        return kept, f"{len(kept)} of {len(value)} characters, because not all fitted."
    return None, f"left out, because it has {_size(value)} bytes."


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())
