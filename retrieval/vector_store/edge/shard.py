"""One shard of Qdrant Edge: a folder with the points of one collection. Runs in processes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import qdrant_edge as qdrant

from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.bm25_options import Bm25Options
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
    """One open shard of Qdrant Edge: writes points and searches them. Used inside the shard's own process alone.

    Every method blocks, and raises what Qdrant Edge raises: `Exception` itself where a call fails, and a
    `BaseException` that is no `Exception` after a panic, after which the process must end. A filter (`where`, `corpus`)
    is a dictionary as `retrieval.vector_store.payload` makes it; a malformed one raises KeyError or ValueError.
    """

    def __init__(self, shard: qdrant.EdgeShard, bm25: Bm25Options) -> None:
        """Wrap an open shard, whose sparse vectors are made with `bm25`. Use `create` or `load`."""
        self._shard = shard
        self._bm25 = Bm25Encoder(bm25)

    @classmethod
    def create(cls, folder: Path, dimension: int | None, bm25: Bm25Options) -> Shard:
        """Create a shard with its payload indexes in `folder`, which must exist and be empty, and flush it.

        `dimension`: numbers per dense vector; None: points have sparse vectors alone. Blocks. Raises what Qdrant Edge
        raises (see `Shard`).
        """
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
        return cls(shard, bm25)

    @classmethod
    def load(cls, folder: Path, bm25: Bm25Options) -> Shard:
        """Open an existing shard. It has all writes that were acknowledged before its last process ended, flushed or
        not. `bm25`: the options with which it was created. Blocks. Raises Exception itself if the files are damaged."""
        return cls(qdrant.EdgeShard.load(str(folder)), bm25)

    def upsert(self, points: Sequence[Mapping[str, Any]], vectors: Sequence[Sequence[float]]) -> None:
        """Write points, each a dictionary with `id` (a UUID), `text` (for BM25), `payload` and `dense`: whether it has
        a dense vector. A stored point with the same id is replaced. `vectors` are those of the points that have one, in
        their order.

        A write survives the end of the process at once, and a loss of power after `flush`. Blocks. Raises what Qdrant
        Edge raises (see `Shard`).
        """
        left = iter(vectors)
        made = [self._make_point(point, next(left) if point["dense"] else None) for point in points]
        self._shard.update(qdrant.UpdateOperation.upsert_points(made))

    def delete(self, where: Mapping[str, Any]) -> int:
        """Delete up to `DELETE_BATCH` points that match, and return how many were deleted. The caller repeats the call
        until it returns 0. Blocks. Raises what Qdrant Edge raises (see `Shard`)."""
        found, _ = self._shard.scroll(
            qdrant.ScrollRequest(limit=DELETE_BATCH, filter=make_edge_filter(where), with_payload=False)
        )
        if found:
            self._shard.update(qdrant.UpdateOperation.delete_points([record.id for record in found]))
        return len(found)

    def read_vectors(self, ids: Sequence[str]) -> dict[str, Sequence[float]]:
        """Return the dense vectors of the points with these ids, scaled to length 1; ids without a point, and points
        without a vector, are missing. Only for a shard with dense vectors. Blocks. Raises what Qdrant Edge raises (see
        `Shard`)."""
        found = self._shard.retrieve(list(ids), with_payload=False, with_vector=[DENSE_VECTOR])
        vectors: dict[str, Sequence[float]] = {}
        for record in found:
            if isinstance(record.vector, dict) and DENSE_VECTOR in record.vector:
                vectors[str(record.id)] = cast("Sequence[float]", record.vector[DENSE_VECTOR])
        return vectors

    def search_dense(
        self, vector: Sequence[float], where: Mapping[str, Any], limit: int
    ) -> list[tuple[int, int, float]]:
        """Return (version, ordinal, cosine) of up to `limit` points that match `where`, highest cosine first. Blocks.
        Raises what Qdrant Edge raises (see `Shard`)."""
        return self._query(qdrant.Query.Nearest(list(vector), using=DENSE_VECTOR), where, limit, None)

    def search_sparse(
        self, text: str, where: Mapping[str, Any], corpus: Mapping[str, Any], limit: int
    ) -> list[tuple[int, int, float]]:
        """Return (version, ordinal, BM25 score) of up to `limit` points that match `where` and share words with `text`,
        highest score first; an empty list where `text` has no words. The filter `corpus` selects the points over which
        the rarity of words is counted. Blocks. Raises what Qdrant Edge raises (see `Shard`)."""
        query = self._bm25.encode_query(text)
        if not query.indices:
            return []
        params = qdrant.SearchParams(idf=qdrant.IdfParams(make_edge_filter(corpus)))
        return self._query(qdrant.Query.Nearest(query, using=SPARSE_VECTOR), where, limit, params)

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return the exact number of points that match `where`, or of all points where it is None. Blocks. Raises what
        Qdrant Edge raises (see `Shard`)."""
        return self._shard.count(
            qdrant.CountRequest(exact=True, filter=None if where is None else make_edge_filter(where))
        )

    def flush(self) -> None:
        """Write all earlier writes to the disk, so that they survive a loss of power. Blocks. Raises what Qdrant Edge
        raises (see `Shard`)."""
        self._shard.flush()

    def optimize(self) -> None:
        """Build indexes and graphs, and free the space of deleted points. Blocks for about a minute for 100,000 points.
        The caller calls `flush` afterwards. Raises what Qdrant Edge raises (see `Shard`)."""
        self._shard.optimize()

    def close(self) -> None:
        """Close the shard's files. Callers call `flush` first, and no method afterwards. Blocks. Raises what Qdrant
        Edge raises (see `Shard`)."""
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
