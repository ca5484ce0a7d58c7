"""Stop strings: where an answer's text ends, however it was cut into pieces. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from worker.engine import Piece


class StopStringFinder:
    """Looks for some strings in a text that comes in pieces. The one whose end comes first is found; of several that
    end there, the longest."""

    def __init__(self, *strings: str) -> None:
        self._strings = strings
        self._held = ""
        """The end of the text so far, as far as it may be the beginning of one of them."""

    def feed_text(self, text: str) -> tuple[str, str | None, str]:
        """Text before the find, and what was found, and text behind it; or text that is part of no find, None, ''."""
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
        """What was held back, where no more text comes."""
        held_text, self._held = self._held, ""
        return held_text

    def _find_all(self, text: str) -> Iterator[tuple[int, int]]:
        for each in self._strings:
            begin = text.find(each)
            if begin >= 0:
                yield begin + len(each), begin


def _overlap(text: str, wanted: str) -> int:
    """Length of the longest end of `text` that `wanted` begins with, without being all of it."""
    longest = min(len(text), len(wanted) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(wanted[:length])), 0)


def until_stop(pieces: Generator[Piece], stops: Sequence[str]) -> Generator[Piece]:
    """The pieces up to the first stop string in their text, which is left out and named by the last of them. Then
    `pieces` is closed, so that the engine works no further."""
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
