"""Decodes tokens that come one by one into text. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import Protocol


class TokenTexts(Protocol):
    """The part of a vocabulary that a `TokenReader` needs."""

    def token_text(self, token: int, *, with_special: bool) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character; b"" for a special token, unless
        `with_special`. `token` must be an id of the vocabulary, from 0 to below its size: implementations need not
        check it, so a caller checks ids from outside before (`check_tokens` of `HFVocabulary` and `LlamaVocabulary`).
        """


class TokenReader:
    """Decodes one answer's tokens, which come one by one, into text. A character may take several tokens. Special
    tokens have text only if they are in `shown_tokens`."""

    def __init__(self, vocabulary: TokenTexts, shown_tokens: Collection[int] = ()) -> None:
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
