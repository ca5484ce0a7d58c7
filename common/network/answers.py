"""Answers of servers that somebody else names, bounded in bytes, depth and time.

Whoever asks bounds the silence and the answer's head (`CheckedBackend` of `transport` for threads, aiohttp's timeout in
an event loop), and asks for no compression: bytes are counted as they come. Files are not read so.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, Final, NoReturn


class UnreadableAnswerError(Exception):
    """An answer cannot be read: it is too large, compressed, nested too deep, or no JSON. The text says which, as a
    clause without a full stop."""


LONGEST_ANSWER: Final = 8 * 1024 * 1024
"""Bytes of an answer, unless who reads it sets another bound. A hub's list of 10,000 files has a third of it."""
ANSWER_S: Final = 45.0
"""Seconds in which the whole body must come."""
DEEPEST_JSON: Final = 64
"""Objects and arrays within each other."""


def read_whole(
    parts: Iterable[bytes],
    *,
    most_bytes: int = LONGEST_ANSWER,
    within_s: float = ANSWER_S,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """Return all parts of a body together. Blocks for `within_s` and the time of one part at most. `clock`: returns
    seconds, and never goes back.

    Raises:
        UnreadableAnswerError: the body has more than `most_bytes`.
        TimeoutError: it did not come in time, however steadily it comes.
    """
    ends_at = clock() + within_s
    body = bytearray()
    for part in parts:
        _add(body, part, most_bytes)
        if clock() > ends_at:
            raise TimeoutError(f"the answer is not complete after {within_s:g} s")
    return bytes(body)


async def gather_whole(parts: AsyncIterable[bytes], *, most_bytes: int = LONGEST_ANSWER) -> bytes:
    """Return all parts of a body together, as `read_whole`; the caller bounds the time.

    Raises:
        UnreadableAnswerError: the body has more than `most_bytes`.
    """
    body = bytearray()
    async for part in parts:
        _add(body, part, most_bytes)
    return bytes(body)


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        UnreadableAnswerError: it is no JSON (NaN and infinities are none), has a number that is too long, or is nested
            deeper than `DEEPEST_JSON`.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise UnreadableAnswerError("it is no JSON") from None
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        if depth > DEEPEST_JSON:
            raise UnreadableAnswerError(f"it is nested deeper than {DEEPEST_JSON} levels")
        level = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
    return value


def _add(body: bytearray, part: bytes, most_bytes: int) -> None:
    if len(body) + len(part) > most_bytes:
        raise UnreadableAnswerError(f"it is larger than {most_bytes} bytes")
    body += part


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
