"""The text of an answer as it comes: tokens decoded, stop strings found, thoughts separated by the marks that a model's
family puts around them. Pure.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Literal

from worker.engine import Piece
from worker.errors import RequestError


class Vocabulary(ABC):
    """Base of the vocabularies of loaded models. They never change, so any thread may read them."""

    size: int
    """The highest token id plus 1."""

    @abstractmethod
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. `add_special` adds the tokens that a prompt starts or ends with. `parse_special`
        reads names of special tokens as these tokens, not as text. Half of a surrogate pair, which UTF-8 cannot encode,
        becomes `?`. Raises nothing."""

    @abstractmethod
    def token_text(self, token: int, *, with_special: bool) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character; b"" for a special token, unless
        `with_special`. `token` must be from 0 to below `size`: check ids from outside by `check_tokens` before, because
        another one may end the process."""

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes that each token stands for, in order, also of special ones. Raises RequestError with `param`
        `tokens` if there is no such token."""
        self.check_tokens(tokens, "tokens")
        return [self.token_text(token, with_special=True) for token in tokens]

    def check_tokens(self, tokens: Iterable[int], place: str) -> None:
        """Raise RequestError unless all ids are from 0 to below `size`. `place`: their field in the request, which
        becomes `param`."""
        for token in tokens:
            if not 0 <= token < self.size:
                raise RequestError(f"There is no token {token}: the model has {self.size}.", param=place)

    def special_tokens_in(self, texts: Iterable[str]) -> frozenset[int]:
        """Return all tokens of these texts, in which names of special tokens stand for those tokens. Ordinary tokens of
        the texts are among them."""
        return frozenset(
            token for text in texts for token in self.tokenize(text, add_special=False, parse_special=True)
        )


class TokenReader:
    """Decodes one answer's tokens, which come one by one, into text. A character may take several tokens. Special
    tokens have text only if they are in `shown_tokens`."""

    def __init__(self, vocabulary: Vocabulary, shown_tokens: Collection[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._shown = shown_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed_token(self, token: int) -> str:
        """Return the text that the token adds, which is empty for a special token that is not shown and for an
        incomplete character. Bytes that are not UTF-8 become U+FFFD. `token` must be an id of the vocabulary."""
        return self._decoder.decode(self._vocabulary.token_text(token, with_special=token in self._shown))

    def flush_text(self) -> str:
        """Return the rest at the end of an answer: U+FFFD for a character that was never completed, else ''."""
        return self._decoder.decode(b"", final=True)


def byte_alphabet() -> dict[int, str]:
    """Return GPT-2's printable character for each byte, by which byte-level vocabularies write the bytes of their
    tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


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


class SpaceTrimmer:
    """Leaves out the white space at the end of a text that comes in pieces, and at its start while `is_start`."""

    def __init__(self, *, is_start: bool) -> None:
        self.is_start = is_start
        self.held = ""
        """White space that belongs to the text only if more text follows."""

    def trim_text(self, text: str) -> str:
        """Return the next part of the text. White space at its end is held back until more text follows."""
        text = self.held + text
        trimmed_text = text.rstrip()
        self.held = text[len(trimmed_text) :]
        if self.is_start:
            trimmed_text = trimmed_text.lstrip()
            self.is_start = not trimmed_text
        return trimmed_text


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
        """Text that may be a part of the begin mark, with white space before it."""
        self._thought = SpaceTrimmer(is_start=True)

    def feed_text(self, text: str) -> tuple[str, str]:
        """Return the next parts of the thought and of the text, either of which may be empty. Text that may belong to a
        mark is held back until a later call."""
        thought = ""
        if self._at == "begin":
            text = self._begin(text)
        if self._at == "thought":
            thought_text, end, text = self._end.feed_text(text)
            thought = self._thought.trim_text(thought_text)
            if end is not None:
                self._at = "gap"
        if self._at == "gap":
            text = text.lstrip()
            self._at = "text" if text else "gap"
        return thought, text

    def flush_text(self) -> tuple[str, str]:
        """Return the rest of the thought and of the text that was held back. Call once, after the last text. A thought
        without its end mark stays thought."""
        if self._at == "thought":
            return self._thought.trim_text(self._end.flush_text()), ""
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
