"""A Hugging Face tokenizer's tokens and the texts they stand for, through the library `tokenizers`."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from worker.errors import LoadError, RequestError
from worker.hf.folder import TOKENIZER, HFFolder
from worker.text.token_reader import byte_alphabet

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's mark for a space."""


class HFVocabulary:
    """The vocabulary of a folder's `tokenizer.json`. It never changes, so any thread may read it. Creating it raises
    LoadError if the file cannot be loaded, ImportError without `tokenizers`.

    `size` is the highest token id plus 1; `end_tokens` are the ids of the tokens that end an answer.
    """

    def __init__(self, folder: HFFolder) -> None:
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._tokenizer: Any = _load_tokenizer(folder)
        self._plain: Any = _load_tokenizer(folder)
        self._plain.encode_special_tokens = True
        added_tokens = self._tokenizer.get_added_tokens_decoder()
        self._added: dict[int, bytes] = {number: token.content.encode() for number, token in added_tokens.items()}
        self._special = frozenset(number for number, token in added_tokens.items() if token.special)
        self.size: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        kinds = {*_kinds(json.loads((folder.path / TOKENIZER).read_text(encoding="utf-8")).get("decoder"))}
        self._bytes = {letter: byte for byte, letter in byte_alphabet().items()} if "ByteLevel" in kinds else None
        self._has_bytes = "ByteFallback" in kinds
        end_token_ids = (self._tokenizer.token_to_id(name) for name in folder.end_tokens)
        self.end_tokens = folder.end_token_ids | {number for number in end_token_ids if number is not None}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. `add_special` adds the tokens that a prompt starts or ends with. `parse_special`
        reads names of special tokens as these tokens, not as text. Half of a surrogate pair, which UTF-8 cannot encode,
        becomes `?`. Raises nothing."""
        tokenizer = self._tokenizer if parse_special else self._plain
        valid_text = text.encode(errors="replace").decode()
        tokens: list[int] = tokenizer.encode(valid_text, add_special_tokens=add_special).ids
        return tokens

    def token_text(self, token: int, *, with_special: bool) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character; b"" for a special token, unless
        `with_special`, and for an id without a token. `token` must not be negative."""
        if token in self._special and not with_special:
            return b""
        if token in self._added:
            return self._added[token]
        name = self.token_name(token)
        if self._bytes is not None:
            return bytes(self._bytes[letter] for letter in name if letter in self._bytes)
        if self._has_bytes and (byte := _BYTE.fullmatch(name)):
            return bytes.fromhex(byte[1])
        return name.replace(_SPACE, " ").encode()

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes that each token stands for, in order, also of special ones. Raises RequestError with `param`
        `tokens` if an id is not below `size`."""
        self.check_tokens(tokens, "tokens")
        return [self.token_text(token, with_special=True) for token in tokens]

    def check_tokens(self, tokens: Iterable[int], place: str) -> None:
        """Raise RequestError unless all ids are from 0 to below `size`. `place`: their field in the request, which
        becomes `param`."""
        for token in tokens:
            if not 0 <= token < self.size:
                raise RequestError(f"There is no token {token}: the model has {self.size}.", param=place)

    def token_name(self, token: int) -> str:
        """Return a token as the vocabulary writes it; empty if no token has this id."""
        return self._tokenizer.id_to_token(token) or ""

    def special_tokens_in(self, texts: Iterable[str]) -> frozenset[int]:
        """Return all tokens of these texts, in which names of special tokens stand for those tokens. Ordinary tokens of
        the texts are among them."""
        return frozenset(
            token for text in texts for token in self.tokenize(text, add_special=False, parse_special=True)
        )


def _load_tokenizer(folder: HFFolder) -> Any:
    tokenizers = importlib.import_module("tokenizers")
    path = folder.path / TOKENIZER
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise LoadError(f"tokenizers cannot load {path}: {error}") from None
    # Truncation and padding settings in the file would cut or pad prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _kinds(decoder: Any) -> Iterator[str]:
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders") or ():
            yield from _kinds(part)
