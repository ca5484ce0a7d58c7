"""The vector store on a Qdrant server, through its REST interface. Needs Qdrant 1.19 or later, which counts how rare a
word is over one tenant's points (https://github.com/qdrant/qdrant/pull/9661): an older server would ignore that
parameter, and scores would tell of other tenants' documents.

Each collection is one of the server's, under a prefix; other collections there are left alone. Tenants share it, told
apart by a keyword index with `is_tenant`, and each large one gets a graph of its own, as Qdrant advises
(https://qdrant.tech/documentation/manage-data/multitenancy/). Qdrant's further step, the promotion of a large tenant to
a shard of its own (tiered multitenancy), needs custom sharding, which a server offers in cluster mode alone
(`QDRANT__CLUSTER__ENABLED`), and a collection must be created with it; the one server of compose.yaml has no second
node to move a shard to, so collections are created with one shard. One shard is also what makes scores comparable:
the server counts words per shard.

Whether a write survives a loss of power is the server's promise: a write is answered when it is applied and in the
server's write-ahead log. REST has no call that flushes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

import httpx
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from retrieval.vector_store.base import (
    CollectionSpec,
    Point,
    ScoredPoint,
    SearchScope,
    VectorStoreError,
    check_existing,
    check_ids,
    check_name,
    check_points,
    check_vector,
)
from retrieval.vector_store.bm25 import Bm25Encoder
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
    make_payload,
    make_search_filter,
    make_tenant_filter,
    make_versions_filter,
)
from retrieval.vector_store.tokenizer import Bm25Options, dump_options, load_options

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

NEEDED_VERSION: Final = (1, 19)
UPSERT_BATCH: Final = 16
"""Points per request: 20 ms of this program's event loop at dimension 384. Larger ones are no faster."""
DELETE_BATCH: Final = 1000
"""Versions per request."""
READ_S: Final = 10.0
WRITE_S: Final = 60.0
TRIES: Final = 3
PAUSE_S: Final = 0.25
"""Before the second try; doubled before each further one."""
_LONGEST_PAUSE_S: Final = 5.0
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_MISSING: Final = 404
_EXISTS: Final = 409
_REFUSED: Final = (401, 403)
_BM25: Final = "bm25"
"""Of a collection's metadata."""
_FOREIGN: Final = "what answers at ROUNDHOUSE_QDRANT_URL is no Qdrant server"
_INDEXES: Final[dict[str, models.KeywordIndexParams | models.IntegerIndexParams]] = {
    TENANT: models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    # Without graphs: see retrieval.vector_store.edge.shard_process.
    SPACE: models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, enable_hnsw=False),
    VERSION: models.IntegerIndexParams(
        type=models.IntegerIndexType.INTEGER, lookup=True, range=False, enable_hnsw=False
    ),
    TERMS: models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, enable_hnsw=False),
    RANKS: models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=False, range=True, enable_hnsw=False),
}


class _NoCollectionError(Exception):
    """The server has no such collection."""


class ServerStore:
    """Implements `retrieval.vector_store.base.VectorStore` with a Qdrant server.

    Requests are idempotent, so one that is not connected or answered with status 429, 500, 502, 503 or 504 is sent up
    to `TRIES` times. VectorStoreError is raised after the last try, at once for a timeout or another failure, and for a
    server that is older than `NEEDED_VERSION`, which the first request checks.
    """

    def __init__(
        self,
        client: AsyncQdrantClient,
        *,
        prefix: str = "roundhouse-",
        read_s: float = READ_S,
        write_s: float = WRITE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Take over a client, which `close` closes. `prefix`: how the names of the store's collections begin on the
        server; others there are ignored. `read_s`, `write_s`: seconds that one try may take, for a search or a count
        and for a write. `pause_s`: seconds before the second try, doubled before each further one."""
        self._client = client
        self._prefix = prefix
        self._read_s = read_s
        self._write_s = write_s
        self._pause_s = pause_s
        self._encoders: dict[Bm25Options, Bm25Encoder] = {}
        self._specs: dict[str, CollectionSpec] = {}
        self._writing: dict[str, asyncio.Lock] = {}
        self._is_checked = False

    @classmethod
    def connect(
        cls,
        url: str,
        api_key: str | None = None,
        *,
        read_s: float = READ_S,
        write_s: float = WRITE_S,
        pause_s: float = PAUSE_S,
    ) -> Self:
        """Return a store on the server at `url`. Nothing is sent yet, so a server that does not answer is found by the
        first request. Raises ValueError for a malformed URL. The caller closes the store.

        `api_key` None: the server needs none. `read_s`, `write_s`: seconds that one try may take, for a search or a
        count and for a write. `pause_s`: seconds before the second try, doubled before each further one.
        """
        with warnings.catch_warnings():
            # The key goes through a network that only the services of compose.yaml are in.
            warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
            client = AsyncQdrantClient(
                url=url,
                api_key=api_key,
                timeout=math.ceil(max(read_s, write_s)),
                check_compatibility=False,  # it would ask from a thread, and warn on stderr; see _check_version
                trust_env=False,  # no proxy
            )
        return cls(client, read_s=read_s, write_s=write_s, pause_s=pause_s)

    @property
    def kind(self) -> str:
        """Always `server`: the kind of the vector store, for status pages."""
        return "server"

    async def list_collections(self) -> Sequence[CollectionSpec]:
        """Return the store's collections, sorted by name, without the prefix. Raises VectorStoreError."""
        found = await self._send(self._client.get_collections, self._read_s)
        names = sorted(each.name for each in found.collections if each.name.startswith(self._prefix))
        specs = []
        for name in names:
            try:
                specs.append(await self._fetch_spec(name.removeprefix(self._prefix)))
            except KeyError:  # it was deleted meanwhile
                continue
        return specs

    async def create_collection(self, spec: CollectionSpec) -> None:
        """Create an empty collection with its indexes; one that exists with this spec gets those it lacks. Raises
        CollectionMismatchError if it exists with another spec, ValueError for a malformed name, and VectorStoreError.
        """
        check_name(spec.name)
        async with self._lock_writes(spec.name):
            try:
                existing = await self._fetch_spec(spec.name)
            except KeyError:
                await self._send(lambda: self._create(spec), self._write_s)
            else:
                check_existing(existing, spec)
            # An earlier call may have ended before it made them.
            info = await self._ask(spec.name, self._client.get_collection, self._read_s)
            for field in _INDEXES.keys() - info.payload_schema.keys():
                await self._create_index(spec.name, field)

    async def delete_collection(self, name: str) -> None:
        """Delete the collection with its points, after writes under way; ignore an unknown name. Raises
        VectorStoreError; `list_collections` then says whether the collection still exists."""
        async with self._lock_writes(name):
            self._specs.pop(name, None)
            with contextlib.suppress(KeyError):
                await self._ask(name, self._client.delete_collection, self._write_s)

    async def upsert_points(self, collection: str, points: Sequence[Point]) -> None:
        """Write points, in place of stored ones with their ids, in the order of the calls, `UPSERT_BATCH` per request.
        Raises KeyError for an unknown collection, ValueError for a wrong point (`check_points`), and VectorStoreError,
        after which some may be written."""
        spec = await self._get_spec(collection)
        check_points(spec, points)
        async with self._lock_writes(collection):
            for start in range(0, len(points), UPSERT_BATCH):
                await self._upsert(spec, points[start : start + UPSERT_BATCH])

    async def flush_collection(self, collection: str) -> None:
        """Flush nothing: a server has no call for that, and has made each write as durable as it ever does. Only asks
        for a collection that this store has not used yet, and raises KeyError where the server has none of that name,
        or VectorStoreError."""
        await self._get_spec(collection)

    async def delete_versions(self, collection: str, versions: Sequence[int]) -> None:
        """Delete all points of these versions, `DELETE_BATCH` versions per request. Raises KeyError for an unknown
        collection, and VectorStoreError, after which some may be deleted."""
        await self._get_spec(collection)
        async with self._lock_writes(collection):
            for start in range(0, len(versions), DELETE_BATCH):
                await self._delete(collection, versions[start : start + DELETE_BATCH])

    async def read_vectors(self, collection: str, ids: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """Return the dense vectors of stored points by id, of length 1; points without one are missing. Raises KeyError
        for an unknown collection, ValueError without dense vectors or for an id that is no UUID; VectorStoreError."""
        check_ids(await self._get_spec(collection), ids)
        vectors: dict[str, Sequence[float]] = {}
        for start in range(0, len(ids), UPSERT_BATCH):
            vectors.update(await self._retrieve(collection, ids[start : start + UPSERT_BATCH]))
        return vectors

    async def search_dense(
        self, collection: str, vector: Sequence[float], scope: SearchScope, limit: int
    ) -> Sequence[ScoredPoint]:
        """Return up to `limit` points of the scope, nearest to `vector` by cosine first. Raises KeyError for an unknown
        collection, ValueError for a wrong vector (`check_vector`), and VectorStoreError."""
        check_vector(await self._get_spec(collection), vector)
        return await self._query(collection, [float(each) for each in vector], DENSE_VECTOR, scope, limit, None)

    async def search_sparse(self, collection: str, text: str, scope: SearchScope, limit: int) -> Sequence[ScoredPoint]:
        """Return up to `limit` points of the scope that share words with `text`, best by BM25 first; without words, ask
        nothing. Raises KeyError for an unknown collection, ValueError for text that is not valid Unicode;
        VectorStoreError."""
        query = self._encoder_of(await self._get_spec(collection)).encode_query(text)
        if not query.indices:
            return []
        corpus = _make_filter(make_tenant_filter(scope.tenant))
        params = models.SearchParams(idf=models.IdfCorpusParams(corpus=corpus))
        vector = models.SparseVector(indices=query.indices, values=query.values)
        return await self._query(collection, vector, SPARSE_VECTOR, scope, limit, params)

    async def count_points(self, collection: str, tenant: str | None = None) -> int:
        """Return the exact number of points, of hidden versions too: of one tenant, or of all where `tenant` is None.
        Raises KeyError for an unknown collection, and VectorStoreError."""
        where = None if tenant is None else _make_filter(make_tenant_filter(tenant))
        counted = await self._ask(
            collection, lambda name: self._client.count(name, count_filter=where, exact=True), self._read_s
        )
        return counted.count

    async def optimize_collection(self, collection: str) -> None:
        """Optimize nothing: the server does it by itself. Only asks for a collection that this store has not used yet,
        and raises KeyError where the server has none of that name, or VectorStoreError."""
        await self._get_spec(collection)

    async def close(self) -> None:
        """Close the client. No other method may be called afterwards."""
        await self._client.close()

    async def _retrieve(self, collection: str, ids: Sequence[str]) -> dict[str, list[float]]:
        found = await self._ask(
            collection,
            lambda name: self._client.retrieve(name, ids, with_payload=False, with_vectors=[DENSE_VECTOR]),
            self._read_s,
        )
        return dict(filter(None, map(_read_dense, found)))

    async def _query(
        self,
        collection: str,
        query: list[float] | models.SparseVector,
        using: str,
        scope: SearchScope,
        limit: int,
        params: models.SearchParams | None,
    ) -> list[ScoredPoint]:
        where = _make_filter(make_search_filter(scope))
        answer = await self._ask(
            collection,
            lambda name: self._client.query_points(
                name,
                query=query,
                using=using,
                query_filter=where,
                search_params=params,
                limit=limit,
                with_payload=[VERSION, ORDINAL],
            ),
            self._read_s,
        )
        return [
            ScoredPoint(payload[VERSION], payload[ORDINAL], point.score)
            for point in answer.points
            if (payload := point.payload) is not None
        ]

    def _encoder_of(self, spec: CollectionSpec) -> Bm25Encoder:
        if spec.bm25 not in self._encoders:
            self._encoders[spec.bm25] = Bm25Encoder(spec.bm25)
        return self._encoders[spec.bm25]

    def _make_point(self, encoder: Bm25Encoder, point: Point) -> models.PointStruct:
        sparse = encoder.encode_passage(point.text)
        vectors: dict[str, Any] = {SPARSE_VECTOR: models.SparseVector(indices=sparse.indices, values=sparse.values)}
        if point.vector is not None:
            vectors[DENSE_VECTOR] = [float(each) for each in point.vector]
        return models.PointStruct(id=point.id, vector=vectors, payload=make_payload(point))

    async def _create(self, spec: CollectionSpec) -> bool:
        hnsw = models.HnswConfigDiff(
            m=HNSW_M,
            payload_m=HNSW_PAYLOAD_M,
            ef_construct=HNSW_EF_CONSTRUCT,
            full_scan_threshold=HNSW_FULL_SCAN_KIB,
        )
        dense = {}
        if spec.dimension is not None:
            dense[DENSE_VECTOR] = models.VectorParams(size=spec.dimension, distance=models.Distance.COSINE)
        try:
            return await self._client.create_collection(
                self._prefix + spec.name,
                vectors_config=dense,
                sparse_vectors_config={SPARSE_VECTOR: models.SparseVectorParams(modifier=models.Modifier.IDF)},
                hnsw_config=hnsw,
                shard_number=1,
                metadata={_BM25: dump_options(spec.bm25)},
            )
        except UnexpectedResponse as error:
            if error.status_code != _EXISTS:
                raise
            return True  # an earlier try did it, and its answer was lost

    async def _create_index(self, collection: str, field: str) -> None:
        await self._update(
            collection, lambda name: self._client.create_payload_index(name, field, _INDEXES[field], wait=True)
        )

    async def _upsert(self, spec: CollectionSpec, points: Sequence[Point]) -> None:
        encoder = self._encoder_of(spec)
        batch = [self._make_point(encoder, point) for point in points]
        await self._update(spec.name, lambda name: self._client.upsert(name, batch, wait=True))

    async def _delete(self, collection: str, versions: Sequence[int]) -> None:
        selector = models.FilterSelector(filter=_make_filter(make_versions_filter(versions)))
        await self._update(collection, lambda name: self._client.delete(name, selector, wait=True))

    async def _get_spec(self, collection: str) -> CollectionSpec:
        return self._specs.get(collection) or await self._fetch_spec(collection)

    async def _fetch_spec(self, collection: str) -> CollectionSpec:
        info = await self._ask(collection, self._client.get_collection, self._read_s)
        vectors = info.config.params.vectors
        dense = vectors.get(DENSE_VECTOR) if isinstance(vectors, dict) else None
        try:
            bm25 = load_options((info.config.metadata or {}).get(_BM25))
        except (TypeError, ValueError):
            raise VectorStoreError(f"the Qdrant server's collection {collection} has unknown options of BM25") from None
        self._specs[collection] = spec = CollectionSpec(collection, None if dense is None else dense.size, bm25)
        return spec

    def _lock_writes(self, collection: str) -> asyncio.Lock:
        return self._writing.setdefault(collection, asyncio.Lock())

    async def _update(self, collection: str, send: Callable[[str], Awaitable[models.UpdateResult]]) -> None:
        result = await self._ask(collection, send, self._write_s)
        if result.status is not models.UpdateStatus.COMPLETED:
            raise VectorStoreError(f"the Qdrant server has not applied a write: {result.status.value}")

    async def _ask(self, collection: str, send: Callable[[str], Awaitable[Result]], within_s: float) -> Result:
        """Send a request about a collection. Raises KeyError where the server has none of that name."""
        try:
            return await self._send(lambda: send(self._prefix + collection), within_s)
        except _NoCollectionError as error:
            self._specs.pop(collection, None)
            raise KeyError(collection) from error

    async def _send(self, send: Callable[[], Awaitable[Result]], within_s: float) -> Result:
        if not self._is_checked:
            _check_version((await self._send_retrying(self._client.info, self._read_s)).version)
            self._is_checked = True
        return await self._send_retrying(send, within_s)

    async def _send_retrying(self, send: Callable[[], Awaitable[Result]], within_s: float) -> Result:
        pause_s = self._pause_s
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                async with asyncio.timeout(within_s):
                    return await send()
            except TimeoutError:
                raise VectorStoreError(f"the Qdrant server did not answer within {within_s:g} s") from None
            except (json.JSONDecodeError, UnicodeDecodeError, AssertionError):  # which the library lets through
                raise VectorStoreError(_FOREIGN) from None
            except (ResponseHandlingException, UnexpectedResponse, ResourceExhaustedResponse) as error:
                failure, is_passing = _describe(error, within_s)
                if not (is_passing and tries_left):
                    # The library's errors hold addresses and bodies: they are not for who asked.
                    raise failure from None
                if isinstance(error, ResourceExhaustedResponse):
                    pause_s = max(pause_s, float(error.retry_after_s))
                logger.warning("%s; trying again", failure)
            await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))
            pause_s *= 2
        raise AssertionError("the last try returns or raises")


def _describe(error: Exception, within_s: float) -> tuple[Exception, bool]:
    """Return what to raise for a library's error, and whether a second try may succeed at once."""
    if isinstance(error, ResourceExhaustedResponse):
        return VectorStoreError("the Qdrant server is too busy (status 429)"), True
    if isinstance(error, UnexpectedResponse):
        if error.status_code == _MISSING and b"Collection" in error.content:
            return _NoCollectionError(), False
        if error.status_code in _REFUSED:
            return VectorStoreError("the Qdrant server refuses the API key (ROUNDHOUSE_QDRANT_API_KEY)"), False
        logger.debug("a Qdrant server's answer: %s", error)
        return VectorStoreError(f"the Qdrant server answered status {error.status_code}"), (
            error.status_code in _RETRIED
        )
    source = getattr(error, "source", None)
    if isinstance(source, httpx.TimeoutException):
        return VectorStoreError(f"the Qdrant server did not answer within {within_s:g} s"), False
    if isinstance(source, httpx.ConnectError):
        return VectorStoreError("the Qdrant server is not reachable (ROUNDHOUSE_QDRANT_URL)"), True
    if isinstance(source, httpx.TransportError):
        return VectorStoreError("the connection to the Qdrant server broke"), True
    return VectorStoreError(_FOREIGN), False


def _check_version(text: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < NEEDED_VERSION:
        needed = ".".join(map(str, NEEDED_VERSION))
        raise VectorStoreError(f"the Qdrant server has version {text:.20}; {needed} or later is needed")


def _read_dense(record: models.Record) -> tuple[str, list[float]] | None:
    """Return the id and the dense vector of a point; None: it has no such vector."""
    vector = record.vector.get(DENSE_VECTOR) if isinstance(record.vector, dict) else None
    if vector is None and record.vector in ({}, None):
        return None
    numbers = [each for each in vector or () if isinstance(each, float)]
    if not numbers:
        raise VectorStoreError("the Qdrant server answered a point without its vector")
    return str(record.id), numbers


def _make_filter(where: dict[str, Any]) -> models.Filter:
    return models.Filter.model_validate(where)
