"""Separates what a model thinks from what it says, by the marks that its family puts around thoughts. Pure."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Literal

from worker.engine import Piece
from worker.text.stop_strings import StopStringFinder


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks before and after a thought. A thought comes first in an answer, or not at all."""

    begin: str
    end: str


QWEN: Final = Marks("<think>", "</think>")
GEMMA: Final = Marks("<|channel>thought", "<channel|>")
MISTRAL: Final = Marks("[THINK]", "[/THINK]")

_OF_FORMAT: Final = {"qwen3_template": QWEN, "gemma4_template": GEMMA}


def marks_of(prompt_format: str | None, template: str) -> Marks | None:
    """Return the marks that the prompt format uses, else those whose end mark is in the chat template's source; None if
    there are none. Every template that removes thoughts from earlier answers mentions the end mark."""
    if prompt_format in _OF_FORMAT:
        return _OF_FORMAT[prompt_format]
    return next((marks for marks in (QWEN, GEMMA, MISTRAL) if marks.end in template), None)


def is_open(prompt: str, marks: Marks) -> bool:
    """Return whether the prompt ends inside a thought, so that the answer begins there."""
    return prompt.rstrip().endswith(marks.begin)


class ReasoningSplitter:
    """Separates the thought from the text of one answer that comes piece by piece. White space around a thought is
    dropped. `is_thinking`: the answer begins inside a thought."""

    def __init__(self, marks: Marks, *, is_thinking: bool) -> None:
        self._marks = marks
        self._at: Literal["begin", "thought", "gap", "text"] = "thought" if is_thinking else "begin"
        self._end = StopStringFinder(marks.end)
        self._held = ""
        """Text that may be a part of the begin mark, with white space before it; or white space that may be the last of
        a thought."""
        self._is_empty = True

    def feed_text(self, text: str) -> tuple[str, str]:
        """Return the next parts of the thought and of the text, either of which may be empty. Text that may belong to a
        mark is held back until a later call."""
        thought = ""
        if self._at == "begin":
            text = self._begin(text)
        if self._at == "thought":
            thought_text, end, text = self._end.feed_text(text)
            thought = self._trim_text(thought_text)
            if end is not None:
                self._at, self._held = "gap", ""
        if self._at == "gap":
            text = text.lstrip()
            self._at = "text" if text else "gap"
        return thought, text

    def flush_text(self) -> tuple[str, str]:
        """Return the rest of the thought and of the text that was held back. Call once, after the last text. A thought
        without its end mark stays thought."""
        if self._at == "thought":
            return self._trim_text(self._end.flush_text()), ""
        held_text, self._held = self._held, ""
        return "", held_text

    def _begin(self, text: str) -> str:
        text = self._held + text
        stripped_text = text.lstrip()
        if self._marks.begin.startswith(stripped_text) and stripped_text != self._marks.begin:
            self._held = text
            return ""
        self._held = ""
        if stripped_text.startswith(self._marks.begin):
            self._at = "thought"
            return stripped_text[len(self._marks.begin) :]
        self._at = "text"
        return text

    def _trim_text(self, text: str) -> str:
        text = self._held + text
        trimmed_text = text.rstrip()
        self._held = text[len(trimmed_text) :]
        if self._is_empty:
            trimmed_text = trimmed_text.lstrip()
            self._is_empty = not trimmed_text
        return trimmed_text


def split_reasoning(pieces: Generator[Piece], marks: Marks, *, is_thinking: bool) -> Generator[Piece]:
    """Yield the pieces of an answer with thoughts in `thought`, without the marks; pieces that become empty are left
    out. `is_thinking`: the answer begins inside a thought. Closes `pieces` at the end and when it is closed itself."""
    splitter = ReasoningSplitter(marks, is_thinking=is_thinking)
    with closing(pieces):
        for piece in pieces:
            thought, text = splitter.feed_text(piece.text)
            if piece.finish_reason is not None:
                last_thought, last_text = splitter.flush_text()
                thought, text = thought + last_thought, text + last_text
            if thought or text or piece.finish_reason is not None:
                yield replace(piece, thought=thought, text=text)
