"""llama.cpp's tokens and the texts they stand for, through llama-cpp-python's bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from worker.errors import RequestError


class LlamaVocabulary:
    """The vocabulary of a loaded model. It never changes, so any thread may read it. Valid as long as the `Llama` it
    was made of."""

    def __init__(self, llama_cpp: Any, llama: Any) -> None:
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._llama_cpp = llama_cpp
        self._llama = llama
        self._vocab = llama_cpp.llama_model_get_vocab(llama.model)
        self._size: int = llama.n_vocab()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. `add_special` adds the tokens that a prompt starts or ends with. `parse_special`
        reads names of special tokens as these tokens, not as text. Half of a surrogate pair, which UTF-8 cannot encode,
        becomes `?`."""
        tokens: list[int] = self._llama.tokenize(
            text.encode(errors="replace"), add_bos=add_special, special=parse_special
        )
        return tokens

    def token_text(self, token: int, *, with_special: bool) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character; b"" for a special token, unless
        `with_special`. `token` must be an id of the model's vocabulary, from 0 to below its size. Another one
        may end the process, so check ids from outside with `check_tokens` before."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, with_special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes that each token stands for, in order, also of special ones. Raises RequestError with `param`
        `tokens` if there is no such token."""
        self.check_tokens(tokens, "tokens")
        return [self.token_text(token, with_special=True) for token in tokens]

    def check_tokens(self, tokens: Iterable[int], place: str) -> None:
        """Raise RequestError unless all are tokens of this model. `place`: their field in the request, which becomes
        `param`."""
        for token in tokens:
            if not 0 <= token < self._size:
                raise RequestError(f"There is no token {token}: the model has {self._size}.", param=place)

    def token_name(self, token: int) -> str:
        """Return a token's text as the vocabulary stores it, which for special tokens is what templates write; empty
        for -1 (no token). Any other `token` must be an id of the model's vocabulary, which is not checked."""
        return "" if token < 0 else str(self._llama_cpp.llama_vocab_get_text(self._vocab, token).decode())

    def is_end_token(self, token: int) -> bool:
        """Return whether the token ends an answer. `token` must be an id of the model's vocabulary, which is not
        checked."""
        return bool(self._llama_cpp.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids of all tokens that end an answer, ascending. May be empty."""
        return tuple(token for token in range(self._size) if self.is_end_token(token))

    def special_tokens_in(self, texts: Iterable[str]) -> frozenset[int]:
        """Return all tokens of these texts, in which names of special tokens stand for those tokens. Ordinary tokens of
        the texts are among them."""
        return frozenset(
            token for text in texts for token in self.tokenize(text, add_special=False, parse_special=True)
        )

    def check_grammar(self, gbnf: str, place: str) -> None:
        """Raise RequestError, with `place` as `param`, if llama.cpp cannot read the GBNF grammar, whose start rule must
        be `root`. Call this before a sampler is made with the grammar: llama.cpp would crash otherwise."""
        sampler = self._llama_cpp.llama_sampler_init_grammar(self._vocab, gbnf.encode(), b"root")
        if not sampler:
            raise RequestError(f"`{place}` cannot be followed: llama.cpp makes no grammar of it.", param=place)
        self._llama_cpp.llama_sampler_free(sampler)
