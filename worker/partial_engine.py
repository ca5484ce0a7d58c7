"""The base of engines that serve a part of the APIs."""

from __future__ import annotations

from collections.abc import Generator

from worker.engine import Job, Piece
from worker.errors import RequestError
from worker.schema import ChatRequest, CompletionRequest


class PartialEngine:
    """Refuses whatever its subclass does not override, and does not name in `apis`."""

    def stream_chat(self, request: ChatRequest, job: Job) -> Generator[Piece]:
        """See Engine, as for the others."""
        raise _not_offered()

    def stream_completion(self, request: CompletionRequest, job: Job) -> Generator[Piece]:
        """Refused."""
        raise _not_offered()

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Refused."""
        raise _not_offered()

    def join_tokens(self, tokens: list[int]) -> str:
        """Refused."""
        raise _not_offered()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Refused."""
        raise _not_offered()

    def token_texts(self, tokens: list[int]) -> list[bytes]:
        """Refused."""
        raise _not_offered()

    def render_prompt(self, request: ChatRequest) -> str:
        """Refused."""
        raise _not_offered()

    def count_tokens(self, request: ChatRequest) -> int:
        """Refused."""
        raise _not_offered()


def _not_offered() -> RequestError:
    return RequestError("This engine does not offer that.", code="not_supported")
