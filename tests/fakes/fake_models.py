"""A fake of the models behind the gateway, for retrieval: vectors of letters, rankings by shared words."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Sequence
from dataclasses import dataclass, field

from retrieval.embedding.client import ModelRefusedError, ModelUnavailableError, TextTooLongError


@dataclass
class FakeModels:
    """Embeds a text as its counts of letters. `away`: no model answers; `refuses`: texts with this word are refused."""

    away: bool = False
    refuses: str | None = None
    most: int = 10_000
    """Texts that one request may have."""
    longest: int = 1_000_000
    """Characters that a text may have."""
    takes_no: str | None = None
    """Texts with this word are too long, whatever their length."""
    dimension: int = 26
    """Numbers per vector, at most 26."""
    requests: list[tuple[str, list[str], bool]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    """Where it is set, embeddings in the background wait for it, if one of their texts has the word `gated`."""
    gated: str = ""

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        self.requests.append((model, list(texts), is_background))
        if is_background and self.gate is not None and any(self.gated in text for text in texts):
            await self.gate.wait()
        if self.away:
            raise ModelUnavailableError("no replica is loaded")
        if self.refuses is not None and any(self.refuses in text for text in texts):
            raise ModelRefusedError("the input is too long")
        if len(texts) > self.most:
            raise ModelRefusedError("the inputs are too many")
        if any(len(text) > self.longest or (self.takes_no or "\0") in text for text in texts):
            raise TextTooLongError(f"at most {self.longest} characters")
        letters = string.ascii_lowercase[: self.dimension]
        return [[1.0 + text.lower().count(letter) for letter in letters] for text in texts]

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        if self.away:
            raise ModelUnavailableError("no replica is loaded")
        words = set(query.lower().split())
        return [float(len(words & set(passage.lower().split()))) for passage in passages]
