"""The routes of downloads, by themselves: what they reply, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import BaseModel

from contract.downloads import Download, Removal
from contract.errors import RoundhouseError
from contract.model_files import InspectedModel, ModelFileList, OrderedDownload
from controller.api import examples
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.controller_app import running
from tests.support.http_client import HttpClient

REFERENCE = "hf:user/tiny:Q8_0"
MAIN = "user/tiny/tiny-Q8_0.gguf"
DOWNLOADS = "/v1/admin/downloads"
FILES = "/v1/admin/models/files"


@pytest.fixture
async def transfers(folder: Path) -> AsyncIterator[FakeTransfers]:
    async with FakeTransfers(folder, folder) as transfers:
        transfers.sources[REFERENCE] = FakeSource({MAIN: b"no gguf"}, MAIN, f"{REFERENCE}@abc")
        yield transfers


@pytest.fixture
async def client(transfers: FakeTransfers, folder: Path) -> AsyncIterator[HttpClient]:
    async with running(folder, {}, transfers_url=transfers.url) as site, aiohttp.ClientSession() as session:
        yield HttpClient(site.url, session)


async def test_an_order_from_its_inspection_to_its_end(transfers: FakeTransfers, client: HttpClient) -> None:
    order = {"reference": "user/tiny:Q8_0"}
    found = (await client.post(f"{DOWNLOADS}/inspect", order)).success
    assert (found["name"], found["inspection"]["main"]) == ("tiny", MAIN)
    assert found["forecast"]["summary"] == f"what it takes is not known: {MAIN} is not a GGUF file"
    reply = await client.post(DOWNLOADS, order, headers={"x-roundhouse-actor": "ada"})
    ordered = reply.body
    assert (reply.status, ordered["state"], ordered["forecast"]) == (202, "queued", found["forecast"])
    assert (await client.post(DOWNLOADS, order)).success["id"] == ordered["id"]
    known = transfers.downloads[ordered["id"]].model_dump(mode="json")
    assert (await client.get(f"{DOWNLOADS}/{ordered['id']}")).success == known
    assert [each["id"] for each in (await client.get(DOWNLOADS)).body["downloads"]] == [ordered["id"]]
    transfers.set_state(ordered["id"], "finished")
    [row] = [each for each in (await client.get(FILES)).body["models"] if each["path"] == MAIN]
    assert (row["download"], row["origin"], row["memory_source"]) == (ordered["id"], "download", "model_artifact_size")
    other = await client.request("DELETE", FILES, params={"model": "hf:user/other"})
    assert other.refusal == (409, "models_file_kept")
    removal = await client.request("DELETE", FILES, params={"model": REFERENCE})
    assert removal.body == {"removed": [MAIN], "kept": [], "freed_bytes": 7}
    history = (await client.get("/v1/admin/history")).body["entries"]
    assert ("download", "ada") in [(each["kind"], each["actor"]) for each in history]


async def test_a_download_is_cancelled_by_its_id(client: HttpClient) -> None:
    ordered = (await client.post(DOWNLOADS, reference=REFERENCE)).body
    assert (await client.request("DELETE", f"{DOWNLOADS}/{ordered['id']}")).success["state"] == "cancelled"
    for method in ("DELETE", "GET"):
        assert (await client.request(method, f"{DOWNLOADS}/dl_0")).refusal == (404, "download_not_found"), method


async def test_events_begin_with_every_download_and_end_with_its_end(
    transfers: FakeTransfers, client: HttpClient
) -> None:
    ordered = (await client.post(DOWNLOADS, reference=REFERENCE)).body
    states: list[str] = []
    async with client.get(f"{DOWNLOADS}/events") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            event = Download.model_validate(json.loads(line.removeprefix(b"data: ")))
            states.append(event.state)
            assert event.id == ordered["id"]
            if event.state == "finished":
                break
            transfers.set_state(event.id, "downloading" if event.state == "queued" else "finished", done=3)
    assert states == ["queued", "downloading", "finished"]
    again = await client.get(f"{DOWNLOADS}/events?for_s=0.01")
    assert '"state":"finished"' in again.text, "one that connects again misses no end"


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
async def test_orders_of_downloads_that_are_refused(client: HttpClient, body: dict[str, Any], code: str) -> None:
    for path in (DOWNLOADS, f"{DOWNLOADS}/inspect"):
        assert (await client.post(path, body)).code == code


async def test_while_transfers_is_away_every_route_says_so(transfers: FakeTransfers, client: HttpClient) -> None:
    await transfers.close()
    for path in ("", "/inspect"):
        refused = await client.post(f"{DOWNLOADS}{path}", reference=REFERENCE)
        assert refused.refusal == (503, "transfers_unreachable"), path
    for method, path in (("GET", ""), ("GET", "/events"), ("GET", "/dl_0"), ("DELETE", "/dl_0")):
        refused = await client.request(method, f"{DOWNLOADS}{path}")
        assert refused.refusal == (503, "transfers_unreachable"), (method, path)
    assert (await client.get(FILES)).status == 200
    await transfers.open()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"downloads": "off"}, "downloads_disabled"),
        ({"host": "0.0.0.0"}, "downloads_disabled"),
        ({"host": "0.0.0.0", "downloads": "on"}, "transfers_unreachable"),
        ({}, "transfers_unreachable"),
    ],
)
async def test_downloads_are_off_by_setting_or_by_a_public_address(
    folder: Path, settings: dict[str, Any], code: str
) -> None:
    async with running(folder, {}, **settings) as site, aiohttp.ClientSession() as session:
        client = HttpClient(site.url, session)
        assert (await client.post(DOWNLOADS, reference=REFERENCE)).code == code
        assert (await client.get(DOWNLOADS)).code == code


async def test_an_error_of_the_source_is_passed_on(transfers: FakeTransfers, client: HttpClient) -> None:
    transfers.refusal = RoundhouseError("source_unavailable", "It is busy.", retry_after_s=17)
    reply = await client.post(DOWNLOADS, reference=REFERENCE)
    assert (reply.status, reply.headers["retry-after"], reply.error["message"]) == (503, "17", "It is busy.")


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        (InspectedModel, examples.INSPECTED),
        (OrderedDownload, examples.ORDERED),
        (ModelFileList, examples.MODEL_FILES),
        (Removal, examples.REMOVAL),
    ],
)
def test_the_examples_are_whole_replies(kind: type[BaseModel], example: dict[str, Any]) -> None:
    assert kind.model_validate(example).model_dump(mode="json") == example
