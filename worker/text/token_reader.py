"""The text of tokens that come one by one. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import Protocol


class TokenTexts(Protocol):
    """A vocabulary, as far as a reader needs it."""

    def token_text(self, token: int, *, with_special: bool) -> bytes:
        """What a token stands for; nothing for a special one, unless these are told too."""


class TokenReader:
    """The text of tokens that come one by one. A character may take several."""

    def __init__(self, vocabulary: TokenTexts, shown_tokens: Collection[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._shown = shown_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed_token(self, token: int) -> str:
        """What the token adds. Of special tokens only those that are shown have a text."""
        return self._decoder.decode(self._vocabulary.token_text(token, with_special=token in self._shown))

    def flush_text(self) -> str:
        """What is left at the end: a character that was never finished."""
        return self._decoder.decode(b"", final=True)


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: how byte-level vocabularies write the bytes of their tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
