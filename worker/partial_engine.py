"""The base of engines that serve only some of the APIs."""

from __future__ import annotations

from collections.abc import Generator

from worker.engine import Job, Piece
from worker.errors import RequestError
from worker.schema import ChatRequest, CompletionRequest


class PartialEngine:
    """Base of engines that serve only some of the APIs: every method of `Engine` but `load_model` raises RequestError
    `not_supported` when it is called. A subclass defines `load_model`, `slots`, `apis`, `context_length` and
    `cache_types`, which this class lacks, and overrides the methods of the APIs in its `apis` (see `Engine`)."""

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """Raise RequestError `not_supported`, from the call itself."""
        raise _not_offered()

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Raise RequestError `not_supported`, from the call itself."""
        raise _not_offered()

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Raise RequestError `not_supported`."""
        raise _not_offered()

    def join_tokens(self, tokens: list[int]) -> str:
        """Raise RequestError `not_supported`."""
        raise _not_offered()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Raise RequestError `not_supported`."""
        raise _not_offered()

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Raise RequestError `not_supported`."""
        raise _not_offered()

    def render_prompt(self, request: ChatRequest) -> str:
        """Raise RequestError `not_supported`."""
        raise _not_offered()

    def count_tokens(self, request: ChatRequest) -> int:
        """Raise RequestError `not_supported`."""
        raise _not_offered()


def _not_offered() -> RequestError:
    return RequestError("This engine does not offer that.", code="not_supported")
