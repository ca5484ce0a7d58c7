"""Vectors in this process: Qdrant Edge, one shard folder per collection.

Edge is Qdrant's engine as a library. Its calls hold Python's lock, so writes come in batches of `BATCH` points.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import qdrant_edge as edge

from common.atomic_write import write_atomic
from retrieval.filters import Combination, Comparison, Filter
from retrieval.vector_store import payload
from retrieval.vector_store.base import (
    CollectionMismatchError,
    CollectionSpec,
    Point,
    ScoredPoint,
    SearchScope,
    VectorStoreError,
)

if TYPE_CHECKING:
    from qdrant_edge import ConditionType, NamedVector  # stand in its stub alone

log = logging.getLogger(__name__)

BATCH: Final = 64
DENSE: Final = "dense"
SPARSE: Final = "bm25"
_SPEC_FILE: Final = "collection.json"
_SHARD: Final = "shard"
Result = TypeVar("Result")


class EdgeVectorStore:
    """See `VectorStore`. All calls of the library are made in one thread."""

    kind = "edge"

    def __init__(self, folder: Path, bm25: edge.Bm25) -> None:
        """Open the store in `folder`, which is made where it is missing. Blocks. `bm25`: makes sparse vectors.

        A collection that cannot be opened is set aside, and does not exist then. Raises OSError.
        """
        self._folder = folder
        self._bm25 = bm25
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="edge")
        self._shards: dict[str, tuple[CollectionSpec, edge.EdgeShard]] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(folder.iterdir()):
            if (path / _SPEC_FILE).exists():
                self._open(path)
            elif path.is_dir():
                shutil.rmtree(path)  # its creation was not finished, or its deletion

    async def list_collections(self) -> Sequence[CollectionSpec]:
        """See `VectorStore`."""
        return [self._shards[name][0] for name in sorted(self._shards)]

    async def create_collection(self, spec: CollectionSpec) -> None:
        """See `VectorStore`."""
        if (found := self._shards.get(spec.name)) is not None:
            if found[0].dimension != spec.dimension:
                message = f"{spec.name} has dimension {found[0].dimension}, not {spec.dimension}"
                raise CollectionMismatchError(message)
            return
        await self._run(lambda: self._create(spec))

    async def delete_collection(self, name: str) -> None:
        """See `VectorStore`."""
        found = self._shards.pop(name, None)
        if found is not None:
            await self._run(lambda: self._remove(name, found[1]))

    async def upsert_points(self, collection: str, points: Sequence[Point]) -> None:
        """See `VectorStore`."""
        spec, shard = self._shards[collection]
        for point in points:
            if (None if point.vector is None else len(point.vector)) != spec.dimension:
                raise ValueError(f"a vector of {collection} has another dimension than {spec.dimension}")
        for start in range(0, len(points), BATCH):
            batch = points[start : start + BATCH]
            await self._run(lambda batch=batch: shard.update(self._upsert(batch)))  # type: ignore[misc]

    async def flush_collection(self, collection: str) -> None:
        """See `VectorStore`."""
        _, shard = self._shards[collection]
        await self._run(shard.flush)

    async def delete_versions(self, collection: str, versions: Sequence[int]) -> None:
        """See `VectorStore`."""
        _, shard = self._shards[collection]
        condition = edge.Filter(must=[_one_of(payload.VERSION, list(versions))])
        await self._run(lambda: shard.update(edge.UpdateOperation.delete_points_by_filter(condition)))

    async def search_dense(
        self, collection: str, vector: Sequence[float], scope: SearchScope, limit: int
    ) -> Sequence[ScoredPoint]:
        """See `VectorStore`."""
        spec, shard = self._shards[collection]
        if spec.dimension != len(vector):
            raise ValueError(f"{collection} has dimension {spec.dimension}, not {len(vector)}")
        query = edge.Query.Nearest(list(vector), using=DENSE)
        return await self._search(shard, query, scope, limit, None)

    async def search_sparse(self, collection: str, text: str, scope: SearchScope, limit: int) -> Sequence[ScoredPoint]:
        """See `VectorStore`."""
        _, shard = self._shards[collection]
        query = edge.Query.Nearest(self._bm25.embed_query(text), using=SPARSE)
        corpus = edge.Filter(must=[_equals(payload.TENANT, scope.tenant)])
        return await self._search(shard, query, scope, limit, edge.SearchParams(idf=edge.IdfParams(corpus)))

    async def count_points(self, collection: str, tenant: str | None = None) -> int:
        """See `VectorStore`."""
        _, shard = self._shards[collection]
        condition = None if tenant is None else edge.Filter(must=[_equals(payload.TENANT, tenant)])
        return await self._run(lambda: shard.count(edge.CountRequest(filter=condition, exact=True)))

    async def optimize_collection(self, collection: str) -> None:
        """See `VectorStore`."""
        _, shard = self._shards[collection]
        await self._run(shard.optimize)

    async def close(self) -> None:
        """See `VectorStore`."""
        shards, self._shards = self._shards, {}
        for _, shard in shards.values():
            await self._run(shard.close)
        self._executor.shutdown()

    async def _run(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except Exception as error:
            raise VectorStoreError(f"Qdrant Edge failed: {error}") from error

    async def _search(
        self,
        shard: edge.EdgeShard,
        query: edge.Query,
        scope: SearchScope,
        limit: int,
        params: edge.SearchParams | None,
    ) -> Sequence[ScoredPoint]:
        request = edge.QueryRequest(
            limit,
            query=query,
            filter=build_filter(scope),
            with_payload=[payload.VERSION, payload.ORDINAL],
            params=params,
        )
        found = await self._run(lambda: shard.query(request))
        return [_read_point(point) for point in found]

    def _upsert(self, points: Sequence[Point]) -> edge.UpdateOperation:
        return edge.UpdateOperation.upsert_points([self._build_point(point) for point in points])

    def _build_point(self, point: Point) -> edge.Point:
        vectors: dict[str, NamedVector] = {SPARSE: self._bm25.embed_document(point.text)}
        if point.vector is not None:
            vectors[DENSE] = list(point.vector)
        return edge.Point(point.id, vectors, payload.build_payload(point))

    def _create(self, spec: CollectionSpec) -> None:
        path = self._folder / spec.name
        shutil.rmtree(path, ignore_errors=True)
        (path / _SHARD).mkdir(parents=True)
        shard = edge.EdgeShard.create(str(path / _SHARD), _config_of(spec))
        for field, params in (
            (payload.TENANT, edge.KeywordIndexParams(is_tenant=True)),
            (payload.SPACE, edge.KeywordIndexParams()),
            (payload.VERSION, edge.IntegerIndexParams(lookup=True, range=False)),
        ):
            shard.update(edge.UpdateOperation.create_field_index(field, params))
        shard.flush()
        # Last: a folder without it was not finished.
        content = json.dumps({"name": spec.name, "dimension": spec.dimension})
        write_atomic(path / _SPEC_FILE, content.encode())
        self._shards[spec.name] = (spec, shard)

    def _open(self, path: Path) -> None:
        try:
            content = json.loads((path / _SPEC_FILE).read_bytes())
            spec = CollectionSpec(content["name"], content["dimension"])
            shard = edge.EdgeShard.load(str(path / _SHARD))
        except Exception as error:  # noqa: BLE001 - the library's errors have no other base
            aside = path.with_name(f".{path.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            path.replace(aside)
            log.warning("collection %s cannot be opened (%s); it is set aside as %s", path.name, error, aside.name)
            return
        self._shards[spec.name] = (spec, shard)

    def _remove(self, name: str, shard: edge.EdgeShard) -> None:
        (self._folder / name / _SPEC_FILE).unlink()
        shard.close()
        shutil.rmtree(self._folder / name)


def build_filter(scope: SearchScope) -> edge.Filter:
    """Return Edge's filter for a scope."""
    must: list[ConditionType] = [
        _equals(payload.TENANT, scope.tenant),
        _one_of(payload.SPACE, list(scope.spaces)),
    ]
    if scope.filter is not None:
        must.append(_build_node(scope.filter))
    must_not: list[ConditionType] = []
    if scope.hidden_versions:
        must_not.append(_one_of(payload.VERSION, sorted(scope.hidden_versions)))
    return edge.Filter(must=must, must_not=must_not)


def _build_node(node: Filter) -> edge.Filter:
    if isinstance(node, Combination):
        filters: list[ConditionType] = [_build_node(each) for each in node.filters]
        return edge.Filter(must=filters) if node.operator == "and" else edge.Filter(should=filters)
    if node.operator in ("eq", "in"):
        return edge.Filter(should=_any_value(node))
    if node.operator in ("ne", "nin"):
        return edge.Filter(must_not=_any_value(node))
    bound = float(node.values[0])
    return edge.Filter(must=[_in_range(node.key, edge.RangeFloat(**{node.operator: bound}))])


def _any_value(node: Comparison) -> list[ConditionType]:
    path = payload.attribute_path(node.key)
    encoded = [payload.encode_scalar(value) for value in node.values]
    texts = [value for value in encoded if isinstance(value, str)]
    conditions: list[ConditionType] = [_one_of(path, texts)] if texts else []
    numbers = (value for value in encoded if not isinstance(value, str))
    return conditions + [_in_range(node.key, edge.RangeFloat(gte=float(each), lte=float(each))) for each in numbers]


def _in_range(key: str, bounds: edge.RangeFloat) -> edge.FieldCondition:
    return edge.FieldCondition(payload.attribute_path(key), range=bounds)


def _equals(path: str, value: str) -> edge.FieldCondition:
    return edge.FieldCondition(path, match=edge.MatchValue(value))


def _one_of(path: str, values: list[str] | list[int]) -> edge.FieldCondition:
    return edge.FieldCondition(path, match=edge.MatchAny(values))


def _read_point(point: edge.ScoredPoint) -> ScoredPoint:
    content = point.payload or {}
    return ScoredPoint(content[payload.VERSION], content[payload.ORDINAL], point.score)


def _config_of(spec: CollectionSpec) -> edge.EdgeConfig:
    vectors = {} if spec.dimension is None else {DENSE: edge.EdgeVectorParams(spec.dimension, edge.Distance.Cosine)}
    return edge.EdgeConfig(
        vectors=vectors or None,
        sparse_vectors={SPARSE: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
        # Graphs within tenants alone: no search goes over several.
        hnsw_config=edge.HnswIndexConfig(m=0, payload_m=16, ef_construct=100, full_scan_threshold=10_000),
    )
