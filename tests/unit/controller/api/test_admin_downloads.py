"""The routes of downloads, by themselves: what they reply, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import BaseModel

from contract.downloads import Download, FoundRepository, ModelChoice, Removal
from contract.errors import RoundhouseError
from contract.model_files import InspectedModel, ModelFileList, ModelSearch, OrderedDownload
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
        assert (await client.get(f"{DOWNLOADS}/search?words=a")).code == code


def offer(reference: str, main: str, size: int = 2**30) -> ModelChoice:
    return ModelChoice(reference=reference, format="gguf", main=main, file_count=1, size=size)


async def test_a_search_says_what_fits_and_what_is_here(
    transfers: FakeTransfers, client: HttpClient, folder: Path
) -> None:
    choices = [
        offer(REFERENCE, MAIN),
        offer("hf:user/tiny:F16", "user/tiny/tiny-F16.gguf", 2**50),
        offer("hf:user/tiny", "user/tiny"),
    ]
    transfers.found = [
        FoundRepository(repository="user/tiny", downloads=7, licence="mit", choices=choices),
        FoundRepository(repository="user/tiny-broken", reason="The hub does not show it."),
    ]
    found = (await client.get(f"{DOWNLOADS}/search?words=tiny")).success
    tiny, broken = found["repositories"]
    assert (tiny["downloads"], tiny["licence"], broken["reason"]) == (7, "mit", "The hub does not show it.")
    first, huge, _ = tiny["choices"]
    assert first["reference"] == REFERENCE
    assert first["forecast"]["summary"] == "about 2151 MiB; fits in main memory"
    assert [each["fits"] for each in huge["forecast"]["devices"]] == [False]
    assert [each["is_present"] for each in tiny["choices"]] == [False, False, False]

    ordered = (await client.post(DOWNLOADS, reference=REFERENCE)).body
    transfers.set_state(ordered["id"], "finished")
    fields = {"model_path": MAIN, "backend": "llama_server", "enabled": False}
    assert (await client.request("PUT", "/v1/admin/declarations/models/mine", json=fields)).status == 201
    (tiny,) = (await client.get(f"{DOWNLOADS}/search?words=tiny&limit=1")).success["repositories"]
    marks = [(each["is_present"], each["used_by"]) for each in tiny["choices"]]
    assert marks == [(True, ["mine"]), (False, []), (False, [])], "its folder is no model for one file in it"
    (folder / "user/tiny/config.json").write_text("{}")
    (tiny,) = (await client.get(f"{DOWNLOADS}/search?words=tiny&limit=1")).success["repositories"]
    assert tiny["choices"][2]["is_present"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "words"),
        ("?words=", "words"),
        ("?words=%20%09", "words"),
        (f"?words={'x' * 201}", "words"),
        ("?words=a%0Ab", "control characters"),
        ("?words=a&limit=21", "limit"),
        ("?words=a&limit=0", "limit"),
    ],
)
async def test_searches_that_are_refused(client: HttpClient, query: str, words: str) -> None:
    refused = await client.get(f"{DOWNLOADS}/search{query}")
    assert refused.refusal == (422, "schema_violation")
    assert words in refused.error["message"]


async def test_a_search_without_network_or_transfers_says_so(transfers: FakeTransfers, client: HttpClient) -> None:
    transfers.refusal = RoundhouseError("source_unavailable", "No connection to the hub: no route.")
    refused = await client.get(f"{DOWNLOADS}/search?words=tiny")
    assert (refused.code, refused.error["message"]) == ("source_unavailable", "No connection to the hub: no route.")
    await transfers.close()
    assert (await client.get(f"{DOWNLOADS}/search?words=tiny")).refusal == (503, "transfers_unreachable")
    await transfers.open()


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
        (ModelSearch, examples.MODEL_SEARCH),
        (Removal, examples.REMOVAL),
    ],
)
def test_the_examples_are_whole_replies(kind: type[BaseModel], example: dict[str, Any]) -> None:
    assert kind.model_validate(example).model_dump(mode="json") == example
