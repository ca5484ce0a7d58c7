"""Chunks of documents for the benchmark of retrieval: made texts and made vectors, always the same.

Texts are of words whose frequencies fall with their rank, as those of a language do. Vectors lie around centres, as
those of an embedding model do: among vectors without any structure, a graph finds next to nothing.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from retrieval.vector_store.base import Point

Vectors = npt.NDArray[np.float32]

DIMENSION: Final = 384
TENANTS: Final = 10
CHUNKS_PER_VERSION: Final = 10
WORDS_PER_CHUNK: Final = 80
VOCABULARY: Final = 20_000
CENTRES: Final = 300
_NOISE: Final = 0.06
"""Of each number of a vector, around its centre of length 1."""
_BLOCK: Final = 1_000
"""Chunks that are made together."""


@dataclass(frozen=True, slots=True)
class Query:
    """A search of one tenant."""

    tenant: str
    text: str
    vector: list[float]


class Corpus:
    """`count` chunks of `TENANTS` tenants in turn, `CHUNKS_PER_VERSION` per version."""

    def __init__(self, count: int, seed: int = 1) -> None:
        """Make the vectors, all of length 1."""
        self.count = count
        self._random = random.Random(seed)
        numbers = np.random.default_rng(seed)
        self._centres = _scale_to_one(numbers.standard_normal((CENTRES, DIMENSION), dtype=np.float32))
        self.vectors = self._make_vectors(numbers, count)
        self._query_numbers = numbers
        self._frequencies = list(itertools.accumulate(1 / (rank + 2) for rank in range(VOCABULARY)))

    def make_points(self, batch: int) -> Iterator[list[Point]]:
        """Yield all chunks, so many at a time."""
        for start in range(0, self.count, batch):
            yield [self._make_point(number) for number in range(start, min(start + batch, self.count))]

    def make_queries(self, count: int) -> list[Query]:
        """Return searches of all tenants in turn: three words of a made text, and a vector as a chunk has it."""
        vectors = self._make_vectors(self._query_numbers, count).tolist()
        return [Query(f"tenant{number % TENANTS}", self._make_text(3), vector) for number, vector in enumerate(vectors)]

    def find_best(self, query: Query, limit: int) -> set[tuple[int, int]]:
        """Return version and ordinal of the tenant's chunks that are nearest to the query, by comparing all of them."""
        own = [number for number in range(self.count) if _tenant_of(number) == query.tenant]
        order = np.argsort(-(self.vectors[own] @ np.asarray(query.vector, np.float32)))[:limit]
        return {_place_of(own[position]) for position in order}

    def _make_vectors(self, numbers: np.random.Generator, count: int) -> Vectors:
        made = self._centres[numbers.integers(0, CENTRES, count)]
        for start in range(0, count, _BLOCK):
            block = made[start : start + _BLOCK]
            block += numbers.standard_normal(block.shape, dtype=np.float32) * np.float32(_NOISE)
        return _scale_to_one(made)

    def _make_point(self, number: int) -> Point:
        version, ordinal = _place_of(number)
        return Point(
            id=str(uuid.UUID(int=number + 1)),
            tenant=_tenant_of(number),
            space="",
            version=version,
            ordinal=ordinal,
            text=self._make_text(WORDS_PER_CHUNK),
            vector=self.vectors[number].tolist(),
            attributes={"lang": "en", "year": 2000 + version % 25},
        )

    def _make_text(self, words: int) -> str:
        ranks = self._random.choices(range(VOCABULARY), cum_weights=self._frequencies, k=words)
        return " ".join(f"w{rank:x}" for rank in ranks)


def _place_of(number: int) -> tuple[int, int]:
    """Version and ordinal. A version's chunks are of one tenant, and stored one after the other."""
    return number // CHUNKS_PER_VERSION + 1, number % CHUNKS_PER_VERSION


def _tenant_of(number: int) -> str:
    return f"tenant{number // CHUNKS_PER_VERSION % TENANTS}"


def _scale_to_one(vectors: Vectors) -> Vectors:
    scaled: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled
