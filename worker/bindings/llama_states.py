"""KV caches of sessions of llama.cpp, kept in main memory while the one context serves other requests."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

_SEQUENCE = 0
"""The sequence of the context that llama-cpp-python uses."""


class KeptState(NamedTuple):
    """The cache of one session, copied out of llama.cpp's context to main memory, and the tokens that it holds."""

    tokens: list[int]
    data: Any
    """A ctypes array, as llama.cpp wrote it."""


class SessionStates:
    """The sessions of one `llama_cpp.Llama`: the cache of the last one is in its context, those of others in main
    memory.

    At most `capacity` sessions, which together have at most as many tokens as the context; the least recently used ones
    are dropped. Not thread-safe: call from the thread that generates.
    """

    def __init__(self, llama_cpp: Any, llama: Any, capacity: int) -> None:
        """`llama_cpp`: the library's module. `llama`: the model, whose `eval` is wrapped to count tokens. `capacity`:
        maximum number of sessions; 0: none, and each request finds the context as the last request left it."""
        self._library = llama_cpp
        self._llama = llama
        self._capacity = capacity
        self._kept: OrderedDict[str, KeptState] = OrderedDict()
        self._present: str | None = None
        """The session whose tokens are in the context; None: a request's without a session."""
        self._evaluate = llama.eval
        self._evaluated: int | None = None
        llama.eval = self._count_first

    def enter(self, session_id: str | None, prompt: Sequence[int]) -> None:
        """Make the context ready for a request, `prompt` being its tokens. Call once before its answer is generated.

        If the context holds another session, that session's cache is copied to main memory, and sessions beyond the
        capacity are dropped. Then the kept cache of `session_id` is restored into the context, if it begins with more
        tokens of `prompt` than the context does. If there is no memory for a copy, that session's cache is lost,
        without an error.

        `session_id` None: the request belongs to no session.
        """
        self._evaluated = None
        if not self._capacity:
            return
        if session_id != self._present:
            state = None if session_id is None else self._kept.pop(session_id, None)
            self._put_away(self._capacity - (session_id is not None))
            if state is not None and _shared(state.tokens, prompt) > _shared(self._tokens(), prompt):
                self._restore(state)
        self._present = session_id

    def count_cached(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of `prompt` were in the cache. Call once the first token of its answer is there."""
        return len(prompt) - (self._evaluated or 0)

    def _count_first(self, tokens: Sequence[int]) -> None:
        if self._evaluated is None:
            self._evaluated = len(tokens)
        self._evaluate(tokens)

    def _tokens(self) -> list[int]:
        return list(map(int, self._llama.input_ids[: self._llama.n_tokens]))

    def _put_away(self, most: int) -> None:
        """Copy the session that is in the context, if one is, to main memory, where `most` sessions are kept."""
        tokens = [] if self._present is None else self._tokens()
        self._make_room(most - bool(tokens), self._llama.n_ctx() - len(tokens))
        if self._present is None or not tokens or not most:
            return
        try:
            size = self._library.llama_state_seq_get_size(self._llama.ctx, _SEQUENCE)
            data = (ctypes.c_uint8 * size)()
        except MemoryError:
            return
        if self._library.llama_state_seq_get_data(self._llama.ctx, data, size, _SEQUENCE) == size:
            self._kept[self._present] = KeptState(tokens, data)

    def _make_room(self, most: int, most_tokens: int) -> None:
        """Drop the sessions used longest ago until no more are kept, and no more tokens of them together."""
        while self._kept and (
            len(self._kept) > most or sum(len(state.tokens) for state in self._kept.values()) > most_tokens
        ):
            self._kept.popitem(last=False)

    def _restore(self, state: KeptState) -> None:
        llama, library = self._llama, self._library
        llama.reset()
        library.llama_memory_clear(library.llama_get_memory(llama.ctx), True)
        if library.llama_state_seq_set_data(llama.ctx, state.data, len(state.data), _SEQUENCE) == len(state.data):
            llama.input_ids[: len(state.tokens)] = state.tokens
            llama.n_tokens = len(state.tokens)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens are equal from the first on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
