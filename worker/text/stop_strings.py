"""Finds stop strings in an answer, however it is cut into pieces. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from worker.engine import Piece


class StopStringFinder:
    """Searches one text that comes in pieces for strings, of which there must be at least one, and none empty. Finds
    the string that ends first; of several that end at the same place, the longest."""

    def __init__(self, *strings: str) -> None:
        self._strings = strings
        self._held = ""
        """End of the text so far that may be the start of one of the strings."""

    def feed_text(self, text: str) -> tuple[str, str | None, str]:
        """Return the text before the string that was found, that string, and the text after it. If none was found,
        return the text that is certainly no part of one, None and ''; the rest is held back.

        After a find, the search begins anew: feed the text after it again to search it too.
        """
        text = self._held + text
        match = min(self._find_all(text), default=None)
        if match is not None:
            end, begin = match
            self._held = ""
            return text[:begin], text[begin:end], text[end:]
        held_length = max(_overlap(text, each) for each in self._strings)
        self._held = text[len(text) - held_length :]
        return text[: len(text) - held_length], None, ""

    def flush_text(self) -> str:
        """Return the text that was held back, which holds no whole string. Call once, after the last text."""
        held_text, self._held = self._held, ""
        return held_text

    def _find_all(self, text: str) -> Iterator[tuple[int, int]]:
        for each in self._strings:
            begin = text.find(each)
            if begin >= 0:
                yield begin + len(each), begin


def _overlap(text: str, wanted: str) -> int:
    """Return the length of the longest end of `text` that is a start of `wanted`, but not all of it."""
    longest = min(len(text), len(wanted) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(wanted[:length])), 0)


def until_stop(pieces: Generator[Piece], stops: Sequence[str]) -> Generator[Piece]:
    """Yield the pieces up to the first stop string in their text. The string is removed and named by the last piece,
    whose finish reason is `stop`; then `pieces` is closed, so that the engine stops, as it is when the iterator is
    closed. Text that may begin a stop string is held back until that is known. Without `stops`, or if none is found,
    all text is yielded."""
    if not stops:
        yield from pieces
        return
    finder = StopStringFinder(*stops)
    with closing(pieces):
        for piece in pieces:
            text, stop_string, _ = finder.feed_text(piece.text)
            if stop_string is not None:
                yield replace(piece, text=text, finish_reason="stop", stop_reason=stop_string)
                return
            if piece.finish_reason is not None:
                text += finder.flush_text()
            if text or piece.thought or piece.tool_calls or piece.finish_reason is not None:
                yield replace(piece, text=text)
