"""The routes of transfers, over a real unix socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from common.internal_server import ListeningServer, open_listener
from common.internal_tokens import TRANSFERS_TOKEN
from common.program import TokenCheck
from common.shared_token import SharedToken
from tests.support.transfers_harness import FileServer, add_file
from tests.support.wait import until
from transfers.assembly import Transfers

CONTENT = b"0123456789"
TOKEN = "a-token-of-16-characters"


@pytest.fixture
async def client(tmp_path: Path, transfers: Transfers) -> AsyncIterator[aiohttp.ClientSession]:
    (tmp_path / "token").write_text(TOKEN)
    app = TokenCheck(transfers.build_app(), SharedToken(tmp_path / "token", "the token"), TRANSFERS_TOKEN)
    async with listening(app, tmp_path / "transfers.sock", {TRANSFERS_TOKEN.header: TOKEN}) as session:
        yield session


@asynccontextmanager
async def listening(app: Any, socket: Path, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientSession]:
    server = ListeningServer(app, socket, open_listener(socket))
    connector = aiohttp.UnixConnector(str(socket))
    async with aiohttp.ClientSession("http://socket", connector=connector, headers=headers) as session:

        async def answers() -> bool:
            try:
                async with session.get("/health") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await until("it listens", answers)
        yield session
    await server.close()


async def request(client: aiohttp.ClientSession, method: str, path: str, **body: object) -> tuple[int, Any]:
    async with client.request(method, path, json=body or None) as answer:
        return answer.status, await answer.json()


async def wait_for_state(client: aiohttp.ClientSession, download: str, state: str) -> None:
    async def look() -> bool:
        return bool((await request(client, "GET", f"/downloads/{download}"))[1]["state"] == state)

    await until(f"{download} is {state}", look)


async def test_a_model_comes_and_goes(client: aiohttp.ClientSession, tmp_path: Path, server: FileServer) -> None:
    reference = str(add_file(server, "/m.gguf", CONTENT))
    status, inspection = await request(client, "POST", "/inspect", reference=reference)
    assert (status, inspection["total_bytes"], inspection["main"]) == (200, 10, "url/127.0.0.1/m.gguf")
    async with client.post("/ranges", json={"reference": reference, "path": "m.gguf", "start": 2, "length": 3}) as part:
        assert (part.content_type, await part.read()) == ("application/octet-stream", b"234")
    server.gate.clear()
    status, download = await request(client, "POST", "/downloads", reference=reference)
    again, same = await request(client, "POST", "/downloads", reference=reference)
    assert (status, again, same["id"]) == (202, 200, download["id"])
    server.gate.set()
    await wait_for_state(client, download["id"], "finished")
    assert [each["id"] for each in (await request(client, "GET", "/downloads"))[1]["downloads"]] == [download["id"]]
    files = (await request(client, "GET", "/files"))[1]["files"]
    assert [(each["path"], each["is_unchanged"]) for each in files] == [("url/127.0.0.1/m.gguf", True)]
    status, removal = await request(client, "DELETE", "/files", id=download["id"])
    assert (status, removal["freed_bytes"]) == (200, 10)
    assert not list(tmp_path.rglob("*.gguf"))


async def test_a_search_is_answered(client: aiohttp.ClientSession, server: FileServer) -> None:
    server.answers["/api/models"] = lambda headers: (200, {}, b"[]")
    assert await request(client, "POST", "/search", words=" a b ", limit=3) == (200, {"repositories": []})


async def test_a_download_is_cancelled(client: aiohttp.ClientSession, server: FileServer) -> None:
    server.gate.clear()
    _, download = await request(client, "POST", "/downloads", reference=str(add_file(server, "/m.gguf", CONTENT)))
    status, ended = await request(client, "DELETE", f"/downloads/{download['id']}")
    assert (status, ended["state"]) == (200, "cancelled")


async def read_events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def test_followers_get_downloads_and_changes(client: aiohttp.ClientSession, server: FileServer) -> None:
    _, first = await request(client, "POST", "/downloads", reference=str(add_file(server, "/a.gguf", CONTENT)))
    await wait_for_state(client, first["id"], "finished")
    server.gate.clear()
    async with client.get("/downloads/events") as answer:
        assert answer.content_type == "text/event-stream"
        events = read_events(answer)
        told = await anext(events)
        assert (told["id"], told["state"], told["done_bytes"]) == (first["id"], "finished", 10)
        _, second = await request(client, "POST", "/downloads", reference=str(add_file(server, "/b.gguf", CONTENT)))
        server.gate.set()
        states = []
        async for event in events:
            assert event["id"] == second["id"]
            states.append(event["state"])
            if event["state"] == "finished":
                break
    order = ["queued", "resolving", "downloading", "verifying", "finished"]
    assert states == sorted(states, key=order.index)
    async with client.get("/downloads/events") as answer:
        events = read_events(answer)
        assert [(await anext(events))["id"], (await anext(events))["id"]] == [first["id"], second["id"]]


WRONG_REQUESTS = (
    ("POST", "/downloads", b"", 400, "invalid_json"),
    ("POST", "/downloads", b"{", 400, "invalid_json"),
    ("POST", "/downloads", b"[]", 400, "invalid_request"),
    ("POST", "/downloads", b"{}", 400, "invalid_request"),
    ("POST", "/downloads", b'{"reference": "u/r", "path": 1}', 400, "invalid_request"),
    ("POST", "/downloads", b'{"reference": "nothing"}', 400, "reference_invalid"),
    ("POST", "/downloads", b'"' + b"x" * 70_000 + b'"', 413, "body_too_large"),
    ("POST", "/inspect", b'{"reference": "https://h/a.gguf"}', 400, "reference_invalid"),
    ("POST", "/ranges", b'{"reference": "u/r", "path": "x", "length": 0}', 400, "invalid_request"),
    ("POST", "/ranges", b'{"reference": "u/r", "path": "x", "length": 99999999999}', 400, "invalid_request"),
    ("POST", "/search", b'{"words": " "}', 400, "invalid_request"),
    ("POST", "/search", b'{"words": "a", "limit": 21}', 400, "invalid_request"),
    ("GET", "/downloads/dl_x", b"", 404, "download_not_found"),
    ("DELETE", "/downloads/dl_x", b"", 404, "download_not_found"),
    ("DELETE", "/files", b"{}", 400, "invalid_request"),
    ("DELETE", "/files", b'{"id": "a", "path": "b"}', 400, "invalid_request"),
    ("DELETE", "/files", b'{"path": "../.."}', 409, "models_file_kept"),
    ("DELETE", "/files", b'{"id": "dl_x"}', 404, "download_not_found"),
    ("DELETE", "/downloads", b"", 405, "method_not_allowed"),
    ("GET", "/nothing", b"", 404, "unknown_route"),
)


async def test_a_wrong_request_is_told_why(client: aiohttp.ClientSession) -> None:
    for method, path, body, status, code in WRONG_REQUESTS:
        async with client.request(method, path, data=body, headers={"x-request-id": "req_1"}) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"], error["request_id"]) == (status, code, "req_1"), (path, body[:80])


async def test_a_disk_that_fails_is_told(
    client: aiohttp.ClientSession, tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    records = tmp_path / ".roundhouse" / "records"
    records.rename(records.with_name("elsewhere"))
    status, answer = await request(client, "POST", "/downloads", reference=str(add_file(server, "/m.gguf", CONTENT)))
    assert (status, answer["error"]["code"]) == (500, "models_folder_failed")
    assert transfers.board.list_downloads() == []


async def test_nobody_gets_in_without_the_token(tmp_path: Path, transfers: Transfers) -> None:
    (tmp_path / "token").write_text(TOKEN)
    app = TokenCheck(transfers.build_app(), SharedToken(tmp_path / "token", "the token"), TRANSFERS_TOKEN)
    async with listening(app, tmp_path / "s.sock", {}) as stranger:
        for shown in ({}, {TRANSFERS_TOKEN.header: "wrong"}, {"authorization": f"Bearer {TOKEN}"}):
            for method, path in (("GET", "/downloads"), ("POST", "/downloads"), ("DELETE", "/files"), ("GET", "/x")):
                async with stranger.request(method, path, headers=shown) as answer:
                    assert (answer.status, (await answer.json())["error"]["code"]) == (401, "invalid_api_key")
