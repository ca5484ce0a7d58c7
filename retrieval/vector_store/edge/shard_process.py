"""The program that has one shard of Qdrant Edge open, a folder with the points of one collection.

    python -m retrieval.vector_store.edge.shard_process FOLDER PARENT BM25 [CREATE]

It answers requests on stdin (see `frames`) with one message each on stdout, in their order: `{"result": ...}`, or
`{"error": TEXT}`. Its first message says that the shard is open, or why it is not. BM25 is the JSON of the shard's
options. CREATE makes the shard: the dimension of its dense vectors, or `none`. It ends when stdin does, or when the
process PARENT ends. Filters are the JSON that `retrieval.vector_store.payload` writes, and nothing else of that JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import qdrant_edge as qdrant
from qdrant_edge import FieldCondition, Filter, MatchAny, MatchValue, RangeFloat

from common.processes import return_freed_memory
from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.edge.frames import (
    decode_vectors,
    die_with_parent,
    encode_frame,
    encode_vector_text,
    read_frame,
)
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
from retrieval.vector_store.tokenizer import Bm25Options, load_options

if TYPE_CHECKING:
    from qdrant_edge import ConditionType


def make_edge_filter(node: Mapping[str, Any]) -> Filter:
    """Return Qdrant Edge's object for a filter `{"must": [...], "should": [...], "must_not": [...]}`, each optional.

    A condition in a list is `{"key": ..., "match": {"value": ...}}`, the same with `{"any": [...]}`, `{"key": ...,
    "range": {"gte": ...}}`, or another filter. Raises ValueError for another clause in a filter, KeyError for a
    condition without `match`, and TypeError for an unknown bound of a range.
    """
    if unknown := set(node) - {"must", "should", "must_not"}:
        raise ValueError(f"unknown clauses of a filter: {sorted(unknown)}")
    return Filter(
        must=_make_conditions(node.get("must")),
        should=_make_conditions(node.get("should")),
        must_not=_make_conditions(node.get("must_not")),
    )


def _make_conditions(nodes: Sequence[Mapping[str, Any]] | None) -> list[ConditionType] | None:
    return None if nodes is None else [_make_condition(node) for node in nodes]


def _make_condition(node: Mapping[str, Any]) -> ConditionType:
    if "key" not in node:
        return make_edge_filter(node)
    if "range" in node:
        return FieldCondition(node["key"], range=RangeFloat(**node["range"]))
    match = node["match"]
    return FieldCondition(node["key"], match=MatchAny(match["any"]) if "any" in match else MatchValue(match["value"]))


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
        """Create a shard with its payload indexes in `folder`, which must exist and be empty, and flush it. Blocks.

        `dimension`: numbers per dense vector; None: sparse vectors alone. `bm25` is not stored: give `load` the same.
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

        A write survives the end of the process at once, and a loss of power after `flush`. Blocks.
        """
        left = iter(vectors)
        made = [self._make_point(point, next(left) if point["dense"] else None) for point in points]
        self._shard.update(qdrant.UpdateOperation.upsert_points(made))

    def delete(self, where: Mapping[str, Any]) -> int:
        """Delete up to `DELETE_BATCH` points that match, and return how many were deleted. The caller repeats the call
        until it returns 0. Blocks."""
        found, _ = self._shard.scroll(
            qdrant.ScrollRequest(limit=DELETE_BATCH, filter=make_edge_filter(where), with_payload=False)
        )
        if found:
            self._shard.update(qdrant.UpdateOperation.delete_points([record.id for record in found]))
        return len(found)

    def read_vectors(self, ids: Sequence[str]) -> dict[str, Sequence[float]]:
        """Return the dense vectors of the points with these ids, scaled to length 1; ids without a point, and points
        without a vector, are missing. Only for a shard with dense vectors. Blocks."""
        found = self._shard.retrieve(list(ids), with_payload=False, with_vector=[DENSE_VECTOR])
        vectors: dict[str, Sequence[float]] = {}
        for record in found:
            if isinstance(record.vector, dict) and DENSE_VECTOR in record.vector:
                vectors[str(record.id)] = cast("Sequence[float]", record.vector[DENSE_VECTOR])
        return vectors

    def search_dense(
        self, vector: Sequence[float], where: Mapping[str, Any], limit: int
    ) -> list[tuple[int, int, float]]:
        """Return (version, ordinal, cosine) of up to `limit` points that match `where`, highest first. Blocks."""
        return self._query(qdrant.Query.Nearest(list(vector), using=DENSE_VECTOR), where, limit, None)

    def search_sparse(
        self, text: str, where: Mapping[str, Any], corpus: Mapping[str, Any], limit: int
    ) -> list[tuple[int, int, float]]:
        """Return (version, ordinal, BM25 score) of up to `limit` points that match `where` and share words with `text`,
        highest score first; an empty list where `text` has no words. The filter `corpus` selects the points over which
        the rarity of words is counted. Blocks."""
        query = self._bm25.encode_query(text)
        if not query.indices:
            return []
        params = qdrant.SearchParams(idf=qdrant.IdfParams(make_edge_filter(corpus)))
        return self._query(qdrant.Query.Nearest(query, using=SPARSE_VECTOR), where, limit, params)

    def count(self, where: Mapping[str, Any] | None) -> int:
        """Return the exact number of points that match `where`, or of all points where it is None. Blocks."""
        return self._shard.count(
            qdrant.CountRequest(exact=True, filter=None if where is None else make_edge_filter(where))
        )

    def flush(self) -> None:
        """Write all earlier writes to the disk, so that they survive a loss of power. Blocks."""
        self._shard.flush()

    def optimize(self) -> None:
        """Build indexes and graphs, and free the space of deleted points. Blocks for about a minute for 100,000 points.
        The caller calls `flush` afterwards."""
        self._shard.optimize()

    def close(self) -> None:
        """Close the shard's files. Callers call `flush` first, and no method afterwards. Blocks."""
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


PANICKED: Final = 70
"""Exit code after a panic of Qdrant Edge: its locks may be held by nobody, so nothing more is asked of it."""


def main() -> None:
    """Open the shard that the command line names (`FOLDER PARENT BM25 [CREATE]`, see the module), and answer requests
    on stdin with messages on stdout until stdin ends; then flush and close the shard.

    Exits with code 1 if the process PARENT has ended already, or if the shard cannot be opened, which a message with
    the error says; and with `PANICKED` after a panic of Qdrant Edge.
    """
    folder, parent, bm25, create = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
    return_freed_memory()
    die_with_parent(parent)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        shard = _open_shard(folder, load_options(bm25), create[0] if create else None)
    except BaseException as error:  # noqa: BLE001 - a panic is no Exception
        _send(answers, {"error": _describe(error)})
        sys.exit(1)
    _send(answers, {"result": "open"})
    serve_requests(shard, requests, answers)
    shard.flush()
    shard.close()


def serve_requests(shard: Shard, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests (frames, see `frames.read_frame`), one at a time and in their order, until `requests` ends: each
    with a frame `{"result": ...}` in `answers`, as `answer_request` returns it.

    A request that fails is answered with `{"error": TEXT}`, and the next one is served. After a panic of Qdrant Edge
    the error is sent, and SystemExit is raised with the code `PANICKED`. Raises EOFError where `requests` ends in the
    middle of a frame.
    """
    while frame := read_frame(requests):
        try:
            _send(answers, {"result": answer_request(shard, *frame)})
        except Exception as error:  # noqa: BLE001 - Qdrant Edge raises Exception itself
            _send(answers, {"error": _describe(error)})
        except BaseException as error:  # noqa: BLE001 - a panic is no Exception
            _send(answers, {"error": _describe(error)})
            sys.exit(PANICKED)


def answer_request(shard: Shard, request: Mapping[str, Any], data: bytes) -> Any:
    """Do what a request asks, and return its result, which JSON can hold.

    `request["op"]` is `search_dense`, `search_sparse`, `upsert`, `delete`, `count` or `flush`, each a method of
    `Shard`, or `vectors` for `Shard.read_vectors`; the other keys are that method's parameters. Dense vectors are in
    `data` instead, with `request["dimension"]` (None for an `upsert` without them). The result is a list of (version,
    ordinal, score) for the two searches, a number for `delete` and `count`, a dictionary of ids and vectors as
    `encode_vector_text` makes them for `vectors`, and None for `upsert` and `flush`. Raises ValueError for an unknown
    `op`, KeyError for a missing key, and what Qdrant Edge raises.
    """
    match request["op"]:
        case "search_dense":
            vector = decode_vectors(data, request["dimension"])[0]
            return shard.search_dense(vector, request["where"], request["limit"])
        case "search_sparse":
            return shard.search_sparse(request["text"], request["where"], request["corpus"], request["limit"])
        case "upsert":
            dimension = request["dimension"]
            shard.upsert(request["points"], [] if dimension is None else decode_vectors(data, dimension))
        case "delete":
            return shard.delete(request["where"])
        case "vectors":
            return {id_: encode_vector_text(vector) for id_, vector in shard.read_vectors(request["ids"]).items()}
        case "count":
            return shard.count(request["where"])
        case "flush":
            shard.flush()
        case unknown:
            raise ValueError(f"unknown request {unknown!r}")
    return None


def _open_shard(folder: Path, bm25: Bm25Options, create: str | None) -> Shard:
    if create is None:
        return Shard.load(folder, bm25)
    return Shard.create(folder, None if create == "none" else int(create), bm25)


def _send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    stream.write(encode_frame(message))
    stream.flush()


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
