"""A fake embedding model that knows what words mean: texts with words of one meaning have similar vectors."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Final

from tests.support.synonyms import SYNONYMS

DIMENSION: Final = 256
_ENDINGS: Final = ("", "s", "d", "ed")


class FakeMeaning:
    """A `ModelClient`. Each word that it knows adds to its own dimension, and half as much to those of its synonyms."""

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        return [_embed(text) for text in texts]

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        raise NotImplementedError("it is no rerank model")


def _embed(text: str) -> list[float]:
    vector = [0.01] * DIMENSION
    for word in re.findall(r"[a-z]+", text.lower()):
        stem = next((word.removesuffix(end) for end in _ENDINGS if word.removesuffix(end) in SYNONYMS), None)
        if stem is not None:
            vector[_place_of(stem)] += 1.0
            for other in SYNONYMS[stem]:
                vector[_place_of(other)] += 0.5
    return vector


def _place_of(word: str) -> int:
    return zlib.crc32(word.encode()) % DIMENSION
