"""One shard of Qdrant Edge: a folder with the points of one collection. Runs in processes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import qdrant_edge as qdrant

from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.edge.conditions import make_edge_filter
from retrieval.vector_store.payload import (
    DENSE_VECTOR,
    HNSW_EF_CONSTRUCT,
    HNSW_FULL_SCAN_KIB,
    HNSW_M,
    HNSW_PAYLOAD_M,
    ORDINAL,
    RANKS,
    SPACE,
    SPARSE_VECTOR,
    TENANT,
    TERMS,
    VERSION,
)

DELETE_BATCH: Final = 200
"""Points per call: 10 ms."""


class Shard:
    """Opens a shard, writes to it and searches it. Calls may raise what Qdrant Edge raises."""

    def __init__(self, shard: qdrant.EdgeShard) -> None:
        """Take over an open shard."""
        self._shard = shard
        self._bm25 = Bm25Encoder()

    @classmethod
    def create(cls, folder: Path, dimension: int | None) -> Shard:
        """Create a shard with its indexes in an empty folder, durably. `dimension` of the dense vectors; None: there
        are none."""
        shard = qdrant.EdgeShard.create(str(folder), _make_config(dimension))
        # Graphs are built per value of every indexed field that does not say no: one over a space that all tenants
        # share took a minute for 100,000 points.
        for field, index in (
            (TENANT, qdrant.KeywordIndexParams(is_tenant=True)),
            (SPACE, qdrant.KeywordIndexParams(enable_hnsw=False)),
            (VERSION, qdrant.IntegerIndexParams(lookup=True, range=False, enable_hnsw=False)),
            (TERMS, qdrant.KeywordIndexParams(enable_hnsw=False)),
            (RANKS, qdrant.IntegerIndexParams(lookup=False, range=True, enable_hnsw=False)),
        ):
            shard.update(qdrant.UpdateOperation.create_field_index(field, index))
        shard.flush()
        return cls(shard)

    @classmethod
    def load(cls, folder: Path) -> Shard:
        """Open a shard, with all writes that were acknowledged before its process ended."""
        return cls(qdrant.EdgeShard.load(str(folder)))

    def upsert(self, points: Sequence[Mapping[str, Any]], vectors: Sequence[Sequence[float]] | None) -> None:
        """Write points (`id`, `text`, `payload`) with their dense vectors."""
        self._shard.update(
            qdrant.UpdateOperation.upsert_points(
                [
                    self._make_point(point, None if vectors is None else vectors[index])
                    for index, point in enumerate(points)
                ]
            )
        )

    def delete(self, where: Mapping[str, Any]) -> int:
        """Delete up to `DELETE_BATCH` points that match, and return how many were deleted."""
        found, _ = self._shard.scroll(
            qdrant.ScrollRequest(limit=DELETE_BATCH, filter=make_edge_filter(where), with_payload=False)
        )
        if found:
            self._shard.update(qdrant.UpdateOperation.delete_points([record.id for record in found]))
        return len(found)

    def search_dense(
        self, vector: Sequence[float], where: Mapping[str, Any], limit: int
    ) -> list[tuple[int, int, float]]:
        """Return (version, ordinal, cosine) of the nearest points, best first."""
        return self._query(qdrant.Query.Nearest(list(vector), using=DENSE_VECTOR), where, limit, None)

    def search_sparse(
        self, text: str, where: Mapping[str, Any], corpus: Mapping[str, Any], limit: int
    ) -> list[tuple[int, int, float]]:
        """Return (version, ordinal, BM25) of the best points. How rare a word is counts over the points of `corpus`."""
        query = self._bm25.encode_query(text)
        if not query.indices:
            return []
        params = qdrant.SearchParams(idf=qdrant.IdfParams(make_edge_filter(corpus)))
        return self._query(qdrant.Query.Nearest(query, using=SPARSE_VECTOR), where, limit, params)

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return the number of points that match, of all where `where` is None."""
        return self._shard.count(
            qdrant.CountRequest(exact=True, filter=None if where is None else make_edge_filter(where))
        )

    def flush(self) -> None:
        """Write everything to the disk."""
        self._shard.flush()

    def optimize(self) -> None:
        """Build indexes and graphs, and free the space of deleted points. Takes about a minute for 100,000 points."""
        self._shard.optimize()

    def close(self) -> None:
        """Close the shard's files."""
        self._shard.close()

    def _make_point(self, point: Mapping[str, Any], vector: Sequence[float] | None) -> qdrant.Point:
        vectors: dict[str, Any] = {SPARSE_VECTOR: self._bm25.encode_passage(point["text"])}
        if vector is not None:
            vectors[DENSE_VECTOR] = vector
        return qdrant.Point(point["id"], vectors, point["payload"])

    def _query(
        self, query: qdrant.Query, where: Mapping[str, Any], limit: int, params: qdrant.SearchParams | None
    ) -> list[tuple[int, int, float]]:
        request = qdrant.QueryRequest(
            limit, query=query, filter=make_edge_filter(where), params=params, with_payload=[VERSION, ORDINAL]
        )
        found = []
        for point in self._shard.query(request):
            payload = point.payload or {}
            found.append((payload[VERSION], payload[ORDINAL], point.score))
        return found


def _make_config(dimension: int | None) -> qdrant.EdgeConfig:
    return qdrant.EdgeConfig(
        vectors=None
        if dimension is None
        else {DENSE_VECTOR: qdrant.EdgeVectorParams(dimension, qdrant.Distance.Cosine)},
        sparse_vectors={SPARSE_VECTOR: qdrant.EdgeSparseVectorParams(modifier=qdrant.Modifier.Idf)},
        hnsw_config=qdrant.HnswIndexConfig(
            m=HNSW_M,
            payload_m=HNSW_PAYLOAD_M,
            ef_construct=HNSW_EF_CONSTRUCT,
            full_scan_threshold=HNSW_FULL_SCAN_KIB,
        ),
        # A shard's process may die with writes that nobody flushed yet: they were acknowledged, so they must be there
        # when the next one loads the shard.
        wal_enabled=True,
    )
