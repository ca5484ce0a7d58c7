"""A fake of a Qdrant server: the REST routes that `retrieval.vector_store.server` uses, over Qdrant Edge.

Every body is parsed by qdrant-client's own generated models, requests and answers alike, and a field that those do not
know is refused; so is a route, a query parameter or a kind of request that the real client never sends. What the fake
cannot show: the server's own checks beyond these models, its timing, and several nodes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import qdrant_edge as edge
from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError
from qdrant_client import models
from qdrant_client.http.models import models as generated

from retrieval.vector_store.edge.shard_process import make_edge_filter

Handler = Callable[[web.Request, Any], dict[str, Any]]


class RefusalError(Exception):
    """A request that a server answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class FakeCollection:
    """One collection: how it was created, and its points in a shard of Qdrant Edge."""

    request: models.CreateCollection
    shard: edge.EdgeShard
    indexes: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Failure:
    """What happens to the next requests in place of an answer."""

    kind: str
    """A status (`500`), `hang`, `close` (the connection, before an answer), `lose` (the connection, after the request
    was carried out), or `nonsense`."""
    times: int
    path: str
    """Requests whose path ends so."""
    headers: Mapping[str, str]


class FakeQdrantServer:
    """Serves on a free port of 127.0.0.1. Use as an asynchronous context manager."""

    def __init__(self, folder: Path, api_key: str | None = None, version: str = "1.19.1") -> None:
        """`folder`: an empty one for the shards. `version`: what the server says that it is."""
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        """Method and path of each request, those that failed too."""
        self.collections: dict[str, FakeCollection] = {}
        self._folder = folder
        self._api_key = api_key
        self._version = version
        self._failures: list[Failure] = []
        self._runner: web.AppRunner | None = None
        self._made = 0
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/", self._serve(self._version_info, None, None))
        add = app.router.add_route
        name = "/collections/{name}"
        answers = generated
        for method, path, handler, body, answer in (
            ("GET", "/collections", self._list, None, answers.InlineResponse2006),
            ("GET", name, self._describe, None, answers.InlineResponse2007),
            ("PUT", name, self._create, models.CreateCollection, answers.InlineResponse2001),
            ("DELETE", name, self._drop, None, answers.InlineResponse2001),
            ("PUT", f"{name}/index", self._index, models.CreateFieldIndex, answers.InlineResponse2008),
            ("PUT", f"{name}/points", self._upsert, models.PointsList, answers.InlineResponse2008),
            ("POST", f"{name}/points/delete", self._delete, models.FilterSelector, answers.InlineResponse2008),
            ("POST", f"{name}/points/query", self._query, models.QueryRequest, answers.InlineResponse20022),
            ("POST", f"{name}/points", self._retrieve, models.PointRequest, answers.InlineResponse20017),
            ("POST", f"{name}/points/count", self._count, models.CountRequest, answers.InlineResponse20020),
        ):
            add(method, path, self._serve(handler, body, answer))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self._stopping.set()
        await self._runner.cleanup()
        for collection in self.collections.values():
            collection.shard.close()

    def fail(self, kind: str, times: int = 1, path: str = "", **headers: str) -> None:
        """Have the next requests whose path ends with `path` fail. See `Failure`."""
        self._failures.append(Failure(kind, times, path, {name.replace("_", "-"): headers[name] for name in headers}))

    def _serve(
        self, handler: Handler, body: type[BaseModel] | None, answer: type[BaseModel] | None
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            self.requests.append((request.method, request.path))
            failure = self._take_failure(request.path)
            if failure is not None and failure.kind != "lose":
                return await self._fail(request, failure)
            try:
                self._check_head(request, is_write=answer is generated.InlineResponse2008)
                parsed = None if body is None else _parse(body, await request.json())
                result = handler(request, parsed)
            except RefusalError as refusal:
                error = {"status": {"error": str(refusal)}, "time": 0.001}
                return web.json_response(error, status=refusal.status)
            if failure is not None:
                return await self._fail(request, failure)
            return web.json_response(result if answer is None else _make_answer(answer, result))

        return serve

    async def _fail(self, request: web.Request, failure: Failure) -> web.StreamResponse:
        if failure.kind == "hang":
            await self._stopping.wait()
        if failure.kind in ("hang", "close", "lose"):
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        if failure.kind == "nonsense":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        error = {"status": {"error": "Service internal error: peer 10.1.2.3 of secret-host"}, "time": 0.001}
        return web.json_response(error, status=int(failure.kind), headers=failure.headers)

    def _take_failure(self, path: str) -> Failure | None:
        for failure in self._failures:
            if failure.times and path.endswith(failure.path):
                failure.times -= 1
                return failure
        return None

    def _check_head(self, request: web.Request, is_write: bool) -> None:
        if self._api_key is not None and request.headers.get("api-key") != self._api_key:
            raise RefusalError(401, "Must provide an API key or an Authorization bearer token")
        if dict(request.query) != ({"wait": "true"} if is_write else {}):
            raise RefusalError(400, f"the store's client never sends {dict(request.query)}")

    def _find(self, request: web.Request) -> FakeCollection:
        name = request.match_info["name"]
        if name not in self.collections:
            raise RefusalError(404, f"Not found: Collection `{name}` doesn't exist!")
        return self.collections[name]

    def _version_info(self, _request: web.Request, _body: None) -> dict[str, Any]:
        result = {"title": "qdrant - vector search engine", "version": self._version, "commit": "0" * 40}
        models.VersionInfo.model_validate(result)
        return result

    def _list(self, _request: web.Request, _body: None) -> dict[str, Any]:
        return {"collections": [{"name": name} for name in self.collections]}

    def _describe(self, request: web.Request, _body: None) -> dict[str, Any]:
        found = self._find(request)
        parameters = found.request.model_dump(mode="json", exclude_none=True)
        return {
            "status": "green",
            "optimizer_status": "ok",
            "points_count": found.shard.info().points_count,
            "segments_count": found.shard.info().segments_count,
            "config": {
                "params": {
                    "vectors": parameters.get("vectors", {}),
                    "sparse_vectors": parameters["sparse_vectors"],
                    "shard_number": parameters["shard_number"],
                    "replication_factor": 1,
                    "write_consistency_factor": 1,
                    "on_disk_payload": True,
                },
                "hnsw_config": parameters["hnsw_config"],
                "optimizer_config": {"default_segment_number": 0, "flush_interval_sec": 5},
                "metadata": parameters["metadata"],
            },
            "payload_schema": found.indexes,
        }

    def _create(self, request: web.Request, body: models.CreateCollection) -> Any:
        name = request.match_info["name"]
        if name in self.collections:
            raise RefusalError(409, f"Wrong input: Collection `{name}` already exists!")
        self._made += 1
        folder = self._folder / str(self._made)
        folder.mkdir()
        self.collections[name] = FakeCollection(body, edge.EdgeShard.create(str(folder), _make_config(body)))
        return True

    def _drop(self, request: web.Request, _body: None) -> Any:
        found = self.collections.pop(request.match_info["name"], None)
        if found is not None:
            found.shard.close()
        return found is not None

    def _index(self, request: web.Request, body: models.CreateFieldIndex) -> dict[str, Any]:
        found = self._find(request)
        match body.field_schema:
            case models.KeywordIndexParams() as params:
                index: Any = edge.KeywordIndexParams(is_tenant=params.is_tenant, enable_hnsw=params.enable_hnsw)
            case models.IntegerIndexParams() as params:
                index = edge.IntegerIndexParams(
                    lookup=params.lookup, range=params.range, enable_hnsw=params.enable_hnsw
                )
            case other:
                raise RefusalError(400, f"the store's client never makes an index {other!r}")
        found.shard.update(edge.UpdateOperation.create_field_index(body.field_name, index))
        params_json = params.model_dump(mode="json", exclude_none=True)
        found.indexes[body.field_name] = {"data_type": params_json["type"], "params": params_json, "points": 0}
        return _completed()

    def _upsert(self, request: web.Request, body: models.PointsList) -> dict[str, Any]:
        found = self._find(request)
        dimensions = {name: params.size for name, params in _dense_params(found.request).items()}
        points = []
        for point in body.points:
            assert isinstance(point.vector, dict)
            vectors: dict[str, Any] = {}
            for name, vector in point.vector.items():
                if isinstance(vector, models.SparseVector):
                    vectors[name] = edge.SparseVector(vector.indices, vector.values)
                elif name not in dimensions:
                    raise RefusalError(400, f"Wrong input: Not existing vector name error: {name}")
                elif isinstance(vector, list) and len(vector) == dimensions[name]:
                    vectors[name] = vector
                else:
                    raise RefusalError(400, f"Wrong input: Vector dimension error: expected dim: {dimensions[name]}")
            points.append(edge.Point(str(point.id), vectors, point.payload))
        found.shard.update(edge.UpdateOperation.upsert_points(points))
        return _completed()

    def _delete(self, request: web.Request, body: models.FilterSelector) -> dict[str, Any]:
        found = self._find(request)
        found.shard.update(edge.UpdateOperation.delete_points_by_filter(_make_filter(body.filter)))
        return _completed()

    def _query(self, request: web.Request, body: models.QueryRequest) -> dict[str, Any]:
        found = self._find(request)
        if not isinstance(body.with_payload, list) or not body.using or body.limit is None:
            raise RefusalError(400, "the store's client always says which payload, which vector and how many")
        nearest: Any = body.query.nearest if isinstance(body.query, models.NearestQuery) else body.query
        params = None
        if isinstance(nearest, models.SparseVector):
            query = edge.Query.Nearest(edge.SparseVector(nearest.indices, nearest.values), using=body.using)
            if body.params is None or not isinstance(body.params.idf, models.IdfCorpusParams):
                raise RefusalError(400, "the store's client never searches words without a corpus")
            params = edge.SearchParams(idf=edge.IdfParams(_make_filter(body.params.idf.corpus)))
        elif isinstance(nearest, list) and all(isinstance(each, int | float) for each in nearest):
            query = edge.Query.Nearest([float(each) for each in nearest], using=body.using)
        else:
            raise RefusalError(400, f"the store's client never asks {nearest!r}")
        points = found.shard.query(
            edge.QueryRequest(
                body.limit,
                query=query,
                filter=None if body.filter is None else _make_filter(body.filter),
                params=params,
                with_payload=body.with_payload,
            )
        )
        return {
            "points": [
                {"id": str(point.id), "version": point.version, "score": point.score, "payload": point.payload}
                for point in points
            ]
        }

    def _retrieve(self, request: web.Request, body: models.PointRequest) -> Any:
        found = self._find(request)
        if body.with_payload is not False or not isinstance(body.with_vector, list):
            raise RefusalError(400, "the store's client never reads payloads, and names the vector")
        ids: list[Any] = [str(each) for each in body.ids]
        records = found.shard.retrieve(ids, with_payload=False, with_vector=body.with_vector)
        return [{"id": str(record.id), "vector": record.vector} for record in records]

    def _count(self, request: web.Request, body: models.CountRequest) -> dict[str, Any]:
        found = self._find(request)
        where = None if body.filter is None else _make_filter(body.filter)
        return {"count": found.shard.count(edge.CountRequest(exact=bool(body.exact), filter=where))}


def _parse(model: type[BaseModel], body: Any) -> BaseModel:
    """Return the body as the model; refuse a field that the model lost, which nested models may do in silence."""
    try:
        parsed = model.model_validate(body)
    except ValidationError as error:
        raise RefusalError(400, f"Format error in JSON body: {error}") from error
    if _dump(parsed) != body:
        raise RefusalError(400, f"{model.__name__} does not know all of {json.dumps(body):.500}")
    return parsed


def _make_answer(model: type[BaseModel], result: Any) -> dict[str, Any]:
    answer = {"usage": None, "result": result, "status": "ok", "time": round(time.thread_time(), 6)}
    parsed = TypeAdapter(model).validate_python(answer)
    assert _dump(parsed) == answer, f"{model.__name__} does not know all of {answer}"
    return answer


def _dump(parsed: BaseModel) -> Any:
    return parsed.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _completed() -> dict[str, Any]:
    return {"operation_id": 1, "status": "completed"}


def _dense_params(request: models.CreateCollection) -> dict[str, models.VectorParams]:
    return request.vectors if isinstance(request.vectors, dict) else {}


def _make_config(request: models.CreateCollection) -> edge.EdgeConfig:
    sparse = request.sparse_vectors or {}
    dense = {
        name: edge.EdgeVectorParams(each.size, edge.Distance.Cosine) for name, each in _dense_params(request).items()
    }
    return edge.EdgeConfig(
        vectors=dense or None,
        sparse_vectors={name: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf) for name in sparse},
    )


def _make_filter(where: models.Filter) -> edge.Filter:
    return make_edge_filter(where.model_dump(mode="json", exclude_unset=True))
