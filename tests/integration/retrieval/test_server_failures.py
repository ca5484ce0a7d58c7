"""What a store on a Qdrant server does when the server fails, and what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession
from qdrant_client import models

from retrieval.vector_store.base import CollectionSpec, Point, SearchScope, VectorStoreError
from retrieval.vector_store.server import TRIES, ServerStore
from tests.fakes.fake_qdrant_server import FakeQdrantServer

SPEC = CollectionSpec("c", 2)
SCOPE = SearchScope("t", [""], None, frozenset())
POINT = Point("00000000-0000-0000-0000-000000000001", "t", "", 1, 0, "word", (1, 0), {})
ENTRY = ("GET", "/")

CALLS: dict[str, Callable[[ServerStore], Awaitable[object]]] = {
    "list": lambda store: store.list_collections(),
    "create": lambda store: store.create_collection(CollectionSpec("new", 2)),
    "delete": lambda store: store.delete_collection("c"),
    "upsert": lambda store: store.upsert_points("c", [POINT]),
    "delete_versions": lambda store: store.delete_versions("c", [1]),
    "dense": lambda store: store.search_dense("c", [1, 0], SCOPE, 1),
    "vectors": lambda store: store.read_vectors("c", [POINT.id]),
    "sparse": lambda store: store.search_sparse("c", "word", SCOPE, 1),
    "count": lambda store: store.count_points("c"),
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FakeQdrantServer]:
    """A server with a key."""
    async with FakeQdrantServer(tmp_path, api_key="s3cret") as started:
        yield started


@pytest.fixture
async def store(server: FakeQdrantServer) -> AsyncIterator[ServerStore]:
    """A store that has the collection `c` with one point, and does not wait before a second try."""
    opened = ServerStore.connect(server.url, "s3cret", read_s=60, pause_s=0)
    await opened.create_collection(SPEC)
    await opened.upsert_points("c", [POINT])
    server.requests.clear()
    yield opened
    await opened.close()


def check_text(error: BaseException, server: FakeQdrantServer) -> None:
    """An error's text tells no address and no secret."""
    shown: BaseException | None = error
    while shown is not None:
        for secret in ("127.0.0.1", server.url.rpartition(":")[2], "s3cret", "10.1.2.3", "secret-host"):
            assert secret not in str(shown)
        shown = shown.__cause__


@pytest.mark.parametrize("kind", ["500", "503", "close"])
@pytest.mark.parametrize("call", CALLS)
async def test_what_fails_is_tried_again(server: FakeQdrantServer, store: ServerStore, call: str, kind: str) -> None:
    server.fail(kind, TRIES - 1)
    await CALLS[call](store)
    assert len(set(server.requests)) < len(server.requests)


@pytest.mark.parametrize("kind", ["500", "close", "nonsense", "400", "401", "429"])
@pytest.mark.parametrize("call", CALLS)
async def test_a_failure_names_no_address(server: FakeQdrantServer, store: ServerStore, call: str, kind: str) -> None:
    server.fail(kind, 100)
    with pytest.raises(VectorStoreError) as raised:
        await CALLS[call](store)
    check_text(raised.value, server)
    tried = TRIES if kind in ("500", "close", "429") else 1
    assert len(server.requests) == tried


@pytest.mark.parametrize("call", CALLS)
async def test_a_server_that_hangs_is_given_up(server: FakeQdrantServer, store: ServerStore, call: str) -> None:
    server.fail("hang", 100)
    hurried = ServerStore.connect(server.url, "s3cret", read_s=0.1, write_s=0.1)
    with pytest.raises(VectorStoreError, match=r"did not answer within 0.1 s") as raised:
        await CALLS[call](hurried)
    check_text(raised.value, server)
    assert len(server.requests) <= 1  # on a busy machine, not even the first gets there
    await hurried.close()


@pytest.mark.parametrize("call", CALLS)
async def test_a_lost_answer_does_no_harm(server: FakeQdrantServer, store: ServerStore, call: str) -> None:
    server.fail("lose", TRIES - 1)
    await CALLS[call](store)
    if call == "create":
        assert await store.list_collections() == [SPEC, CollectionSpec("new", 2)]
    assert await store.list_collections() or call == "delete"


async def test_a_busy_server_says_when_to_come_again(server: FakeQdrantServer, store: ServerStore) -> None:
    server.fail("429", 1, retry_after="0")
    assert await store.count_points("c") == 1


async def test_a_server_that_is_away_is_said_by_its_setting(server: FakeQdrantServer, store: ServerStore) -> None:
    await server.__aexit__()
    with pytest.raises(VectorStoreError, match=r"not reachable \(ROUNDHOUSE_QDRANT_URL\)") as raised:
        await store.count_points("c")
    check_text(raised.value, server)
    server.collections.clear()
    await server.__aenter__()


@pytest.mark.parametrize(("version", "told"), [("1.18.2", "1.18.2"), ("unknown", "unknown")])
async def test_a_server_that_would_ignore_the_corpus_is_refused(tmp_path: Path, version: str, told: str) -> None:
    async with FakeQdrantServer(tmp_path, version=version) as server:
        store = ServerStore.connect(server.url)
        with pytest.raises(VectorStoreError, match=f"has version {told}; 1.19 or later is needed"):
            await store.list_collections()
        await store.close()


async def test_the_version_is_asked_once(tmp_path: Path) -> None:
    async with FakeQdrantServer(tmp_path, version="1.20.0-dev") as server:
        store = ServerStore.connect(server.url)
        await store.list_collections()
        await store.list_collections()
        await store.close()
        assert server.requests.count(ENTRY) == 1


async def test_a_wrong_key_is_said_by_its_setting(server: FakeQdrantServer) -> None:
    store = ServerStore.connect(server.url, "wrong")
    with pytest.raises(VectorStoreError, match=r"refuses the API key \(ROUNDHOUSE_QDRANT_API_KEY\)"):
        await store.list_collections()
    await store.close()


async def test_an_address_of_something_else_is_said(server: FakeQdrantServer, store: ServerStore) -> None:
    server.fail("404", 1)
    with pytest.raises(VectorStoreError, match="answered status 404"):
        await store.count_points("c")
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own text
        ServerStore.connect("ftp://127.0.0.1")


async def test_indexes_that_a_killed_program_left_out_are_made(server: FakeQdrantServer, store: ServerStore) -> None:
    server.fail("500", TRIES, path="/index")
    with pytest.raises(VectorStoreError):
        await store.create_collection(CollectionSpec("new", 2))
    await store.create_collection(CollectionSpec("new", 2))
    made = server.collections["roundhouse-new"].indexes
    assert made == server.collections["roundhouse-c"].indexes
    assert made["tenant"]["params"] == {"type": "keyword", "is_tenant": True}
    expected = {"tenant": None, "space": False, "version": False, "terms": False, "ranks": False}
    assert {name: made[name]["params"].get("enable_hnsw") for name in made} == expected


async def test_other_collections_of_the_server_are_left_alone(server: FakeQdrantServer, store: ServerStore) -> None:
    request = models.CreateCollection(
        vectors={}, sparse_vectors={"bm25": models.SparseVectorParams()}, shard_number=1, hnsw_config={}
    )
    async with ClientSession(headers={"api-key": "s3cret"}) as session:
        body = request.model_dump(mode="json", exclude_unset=True)
        answer = await session.put(f"{server.url}/collections/foreign", json=body)
        assert answer.status == 200
    assert await store.list_collections() == [SPEC]
    await store.delete_collection("foreign")
    assert "foreign" in server.collections


async def test_the_fake_refuses_what_the_store_never_sends(server: FakeQdrantServer, store: ServerStore) -> None:
    name = f"{server.url}/collections/roundhouse-c"
    async with ClientSession(headers={"api-key": "s3cret"}) as session:
        for method, url, body, status in (
            ("GET", f"{server.url}/telemetry", None, 404),
            ("POST", f"{name}/points/scroll", {}, 404),
            ("PATCH", name, {}, 405),
            ("POST", f"{name}/points/count", {"exact": True, "unknown": 1}, 400),
            ("POST", f"{name}/points/count?timeout=3", {"exact": True}, 400),
            ("POST", f"{name}/points/delete", {"filter": {}}, 400),
            ("POST", f"{name}/points/delete?wait=true", {"points": [1]}, 400),
            ("PUT", f"{name}/points?wait=true", {"points": [{"id": 1, "vector": {}, "colour": "red"}]}, 400),
            ("PUT", f"{name}/index?wait=true", {"field_name": "x", "field_schema": "geo"}, 400),
            ("POST", f"{name}/points/query", {"query": [1, 0], "using": "dense", "limit": 1}, 400),
            (
                "POST",
                f"{name}/points/query",
                {"query": {"indices": [1], "values": [1.0]}, "using": "bm25", "limit": 1, "with_payload": ["version"]},
                400,
            ),
            ("POST", f"{name}/points/query", {"query": {"fusion": "rrf"}}, 400),
        ):
            answer = await session.request(method, url, json=body)
            assert answer.status == status, (method, url, body, await answer.text())
        assert (await session.get(f"{server.url}/collections", headers={"api-key": "no"})).status == 401
    assert await store.count_points("c") == 1
