"""The stores that the benchmark of retrieval measures side by side, with one face, and the chunks of documents that
they get.

Texts are of words whose frequencies fall with their rank, as those of a language do. Vectors lie around centres, as
those of an embedding model do: among vectors without any structure, a graph finds next to nothing.

All of them get the same points, the same filters and the same words of BM25.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from retrieval.vector_store.base import CollectionSpec, Point, SearchScope
from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.edge.shard_process import Shard
from retrieval.vector_store.edge.store import EdgeStore
from retrieval.vector_store.payload import (
    DENSE_VECTOR,
    ORDINAL,
    SPARSE_VECTOR,
    VERSION,
    make_payload,
    make_search_filter,
    make_tenant_filter,
)
from retrieval.vector_store.tokenizer import Bm25Options
from tests.support.memory import memory_of

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


OURS, BARE, LOCAL = "Roundhouse", "qdrant_edge", "local mode"
COLLECTION: Final = "bench"
Place = tuple[int, int]


class Side(Protocol):
    async def insert(self, points: Sequence[Point]) -> None: ...

    async def flush(self) -> None: ...

    async def search_dense(self, query: Query, limit: int) -> Sequence[Place]: ...

    async def search_sparse(self, query: Query, limit: int) -> Sequence[Place]: ...

    async def optimize(self) -> None: ...

    async def close(self) -> None: ...


class OurStore:
    """The embedded store, whose shard is in a process of its own."""

    def __init__(self, store: EdgeStore) -> None:
        """Take over an open store."""
        self._store = store

    @classmethod
    async def open(cls, folder: Path) -> Side:
        store = await EdgeStore.open(folder)
        await store.create_collection(CollectionSpec(COLLECTION, DIMENSION))
        return cls(store)

    async def insert(self, points: Sequence[Point]) -> None:
        await self._store.upsert_points(COLLECTION, points)

    async def flush(self) -> None:
        await self._store.flush_collection(COLLECTION)

    async def search_dense(self, query: Query, limit: int) -> Sequence[Place]:
        found = await self._store.search_dense(COLLECTION, query.vector, _scope_of(query), limit)
        return [(each.version, each.ordinal) for each in found]

    async def search_sparse(self, query: Query, limit: int) -> Sequence[Place]:
        found = await self._store.search_sparse(COLLECTION, query.text, _scope_of(query), limit)
        return [(each.version, each.ordinal) for each in found]

    async def optimize(self) -> None:
        await self._store.optimize_collection(COLLECTION)

    async def close(self) -> None:
        await self._store.close()


class BareLibrary:
    """The library in the caller's own process, with the same configuration. `optimize` runs in a thread, as everybody
    would try first; the library keeps Python's lock."""

    def __init__(self, shard: Shard) -> None:
        """Take over an open shard."""
        self._shard = shard

    @classmethod
    async def open(cls, folder: Path) -> Side:
        folder.mkdir()
        return cls(Shard.create(folder, DIMENSION, Bm25Options()))

    async def insert(self, points: Sequence[Point]) -> None:
        stored = [{"id": each.id, "text": each.text, "payload": make_payload(each), "dense": True} for each in points]
        self._shard.upsert(stored, [each.vector or () for each in points])

    async def flush(self) -> None:
        self._shard.flush()

    async def search_dense(self, query: Query, limit: int) -> Sequence[Place]:
        found = self._shard.search_dense(query.vector, make_search_filter(_scope_of(query)), limit)
        return [(version, ordinal) for version, ordinal, _ in found]

    async def search_sparse(self, query: Query, limit: int) -> Sequence[Place]:
        where, corpus = make_search_filter(_scope_of(query)), make_tenant_filter(query.tenant)
        found = self._shard.search_sparse(query.text, where, corpus, limit)
        return [(version, ordinal) for version, ordinal, _ in found]

    async def optimize(self) -> None:
        await asyncio.to_thread(self._shard.optimize)

    async def close(self) -> None:
        self._shard.close()


class LocalMode:
    """qdrant-client without a server: Python and numpy. It has no indexes, and counts how rare a word is over all
    points that match the filter of no search: over all."""

    def __init__(self, client: Any) -> None:
        """Take over an open client."""
        self._client = client
        self._bm25 = Bm25Encoder(Bm25Options())

    @classmethod
    async def open(cls, folder: Path) -> Side:
        from qdrant_client import QdrantClient, models

        client = QdrantClient(path=str(folder))
        client.create_collection(
            COLLECTION,
            vectors_config={DENSE_VECTOR: models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)},
            sparse_vectors_config={SPARSE_VECTOR: models.SparseVectorParams(modifier=models.Modifier.IDF)},
        )
        return cls(client)

    async def insert(self, points: Sequence[Point]) -> None:
        from qdrant_client import models

        made = [
            models.PointStruct(
                id=each.id,
                vector={DENSE_VECTOR: list(each.vector or ()), SPARSE_VECTOR: self._sparse(each.text, is_query=False)},
                payload=make_payload(each),
            )
            for each in points
        ]
        self._client.upsert(COLLECTION, made)

    async def flush(self) -> None:
        """See `Side`: every write is durable already."""

    async def search_dense(self, query: Query, limit: int) -> Sequence[Place]:
        return self._search(query, query.vector, DENSE_VECTOR, limit)

    async def search_sparse(self, query: Query, limit: int) -> Sequence[Place]:
        return self._search(query, self._sparse(query.text, is_query=True), SPARSE_VECTOR, limit)

    async def optimize(self) -> None:
        """See `Side`: there is nothing to build."""

    async def close(self) -> None:
        self._client.close()

    def _search(self, query: Query, vector: Any, using: str, limit: int) -> Sequence[Place]:
        from qdrant_client import models

        where = models.Filter.model_validate(make_search_filter(_scope_of(query)))
        found = self._client.query_points(
            COLLECTION, query=vector, using=using, query_filter=where, limit=limit, with_payload=[VERSION, ORDINAL]
        )
        return [(each.payload[VERSION], each.payload[ORDINAL]) for each in found.points]

    def _sparse(self, text: str, *, is_query: bool) -> Any:
        from qdrant_client import models

        made = self._bm25.encode_query(text) if is_query else self._bm25.encode_passage(text)
        return models.SparseVector(indices=list(made.indices), values=list(made.values))


SIDES: Final = {OURS: OurStore.open, BARE: BareLibrary.open, LOCAL: LocalMode.open}


def measure_memory() -> Mapping[str, float]:
    """MiB that this process and those that it started have resident: `own`, `shard`."""
    children = psutil.Process().children(recursive=True)
    return {
        "own": memory_of(os.getpid())["rss"],
        "shard": sum(memory_of(child.pid)["rss"] for child in children),
    }


def measure_disk(folder: Path) -> float:
    """MiB that the files in the folder take on the disk; files may be sparse."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 2**20


def _scope_of(query: Query) -> SearchScope:
    return SearchScope(query.tenant, ("",), None, frozenset())
