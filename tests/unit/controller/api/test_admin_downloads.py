"""The routes of downloads, by themselves: what they answer, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import BaseModel

from controller.api import download_examples as examples
from controller.schema.downloads import Download, Removal
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import InspectedModel, ModelFileList, OrderedDownload
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.controller_app import running

REFERENCE = "hf:user/tiny:Q8_0"
MAIN = "user/tiny/tiny-Q8_0.gguf"
DOWNLOADS = "/v1/admin/downloads"
FILES = "/v1/admin/models/files"


@pytest.fixture
async def transfers(folder: Path) -> AsyncIterator[FakeTransfers]:
    async with FakeTransfers(folder, folder) as made:
        made.sources[REFERENCE] = FakeSource({MAIN: b"no gguf"}, MAIN, f"{REFERENCE}@abc")
        yield made


@pytest.fixture
async def client(transfers: FakeTransfers, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with running(folder, {}, transfers_url=transfers.url) as made, aiohttp.ClientSession(made.url) as session:
        yield session


async def request(client: aiohttp.ClientSession, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """Status and body of an answer; of an error its code."""
    async with client.request(method, path, **more) as answer:
        body = await answer.json()
        return answer.status, body["error"]["code"] if "error" in body and answer.status >= 400 else body


async def test_an_order_from_its_inspection_to_its_end(transfers: FakeTransfers, client: aiohttp.ClientSession) -> None:
    order = {"reference": "user/tiny:Q8_0"}
    status, found = await request(client, "POST", f"{DOWNLOADS}/inspect", json=order)
    assert (status, found["name"], found["inspection"]["main"]) == (200, "tiny", MAIN)
    assert found["forecast"]["summary"] == f"what it takes is not known: {MAIN} is not a GGUF file"
    status, ordered = await request(client, "POST", DOWNLOADS, json=order, headers={"x-roundhouse-actor": "ada"})
    assert (status, ordered["state"], ordered["forecast"]) == (202, "queued", found["forecast"])
    status, again = await request(client, "POST", DOWNLOADS, json=order)
    assert (status, again["id"]) == (200, ordered["id"])
    assert await request(client, "GET", f"{DOWNLOADS}/{ordered['id']}") == (
        200,
        transfers.downloads[ordered["id"]].model_dump(mode="json"),
    )
    _, listed = await request(client, "GET", DOWNLOADS)
    assert [each["id"] for each in listed["downloads"]] == [ordered["id"]]
    transfers.set_state(ordered["id"], "finished")
    _, files = await request(client, "GET", FILES)
    [row] = [each for each in files["models"] if each["path"] == MAIN]
    assert (row["download"], row["origin"], row["memory_source"]) == (ordered["id"], "download", "model_artifact_size")
    assert await request(client, "DELETE", FILES, params={"model": "hf:user/other"}) == (409, "models_file_kept")
    _, removal = await request(client, "DELETE", FILES, params={"model": REFERENCE})
    assert removal == {"removed": [MAIN], "kept": [], "freed_bytes": 7}
    _, history = await request(client, "GET", "/v1/admin/history")
    told = [(each["kind"], each["actor"]) for each in history["entries"] if each["kind"] == "download"]
    assert ("download", "ada") in told


async def test_a_cancellation(transfers: FakeTransfers, client: aiohttp.ClientSession) -> None:
    _, ordered = await request(client, "POST", DOWNLOADS, json={"reference": REFERENCE})
    status, ended = await request(client, "DELETE", f"{DOWNLOADS}/{ordered['id']}")
    assert (status, ended["state"]) == (200, "cancelled")
    assert await request(client, "DELETE", f"{DOWNLOADS}/dl_0") == (404, "download_not_found")
    assert await request(client, "GET", f"{DOWNLOADS}/dl_0") == (404, "download_not_found")


async def test_events_begin_with_every_download_and_end_with_its_end(
    transfers: FakeTransfers, client: aiohttp.ClientSession
) -> None:
    _, ordered = await request(client, "POST", DOWNLOADS, json={"reference": REFERENCE})
    states: list[str] = []
    async with client.get(f"{DOWNLOADS}/events") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            told = Download.model_validate(json.loads(line.removeprefix(b"data: ")))
            states.append(told.state)
            assert told.id == ordered["id"]
            if told.state == "finished":
                break
            transfers.set_state(told.id, "downloading" if told.state == "queued" else "finished", done=3)
    assert states == ["queued", "downloading", "finished"]
    async with client.get(f"{DOWNLOADS}/events?for_s=0.01") as answer:
        assert b'"state":"finished"' in await answer.read(), "one that connects again misses no end"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "schema_violation"),
        ({"reference": REFERENCE, "extra": 1}, "schema_violation"),
        ({"reference": "x" * 3000}, "schema_violation"),
        ({"reference": "no reference"}, "reference_invalid"),
        ({"reference": "hf:user/nothing"}, "source_not_found"),
    ],
)
async def test_what_is_refused(client: aiohttp.ClientSession, body: dict[str, Any], code: str) -> None:
    for path in (DOWNLOADS, f"{DOWNLOADS}/inspect"):
        assert (await request(client, "POST", path, json=body))[1] == code


async def test_while_transfers_is_away_every_route_says_so(
    transfers: FakeTransfers, client: aiohttp.ClientSession
) -> None:
    await transfers.close()
    body = {"reference": REFERENCE}
    for method, path, more in (
        ("POST", DOWNLOADS, {"json": body}),
        ("POST", f"{DOWNLOADS}/inspect", {"json": body}),
        ("GET", DOWNLOADS, {}),
        ("GET", f"{DOWNLOADS}/events", {}),
        ("GET", f"{DOWNLOADS}/dl_0", {}),
        ("DELETE", f"{DOWNLOADS}/dl_0", {}),
    ):
        assert await request(client, method, path, **more) == (503, "transfers_unreachable")
    assert (await request(client, "GET", FILES))[0] == 200
    await transfers.open()


@pytest.mark.parametrize(
    ("settings", "models", "code"),
    [
        ({"downloads": "off"}, {}, "downloads_disabled"),
        ({"host": "0.0.0.0"}, {}, "downloads_disabled"),
        ({"host": "0.0.0.0", "downloads": "on"}, {}, "transfers_unreachable"),
        ({}, {}, "transfers_unreachable"),
    ],
)
async def test_who_may_download(folder: Path, settings: dict[str, Any], models: dict[str, Any], code: str) -> None:
    async with running(folder, models, **settings) as made, aiohttp.ClientSession(made.url) as client:
        assert (await request(client, "POST", DOWNLOADS, json={"reference": REFERENCE}))[1] == code
        assert (await request(client, "GET", DOWNLOADS))[1] == code


async def test_an_error_of_the_source_is_passed_on(transfers: FakeTransfers, client: aiohttp.ClientSession) -> None:
    transfers.refusal = RoundhouseError("source_unavailable", "It is busy.", retry_after_s=17)
    async with client.post(DOWNLOADS, json={"reference": REFERENCE}) as answer:
        assert (answer.status, answer.headers["retry-after"]) == (503, "17")
        assert (await answer.json())["error"]["message"] == "It is busy."


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        (InspectedModel, examples.INSPECTED),
        (OrderedDownload, examples.ORDERED),
        (ModelFileList, examples.MODEL_FILES),
        (Removal, examples.REMOVAL),
    ],
)
def test_the_examples_are_whole_answers(kind: type[BaseModel], example: dict[str, Any]) -> None:
    assert kind.model_validate(example).model_dump(mode="json") == example
