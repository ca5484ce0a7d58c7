"""What llama.cpp's own web page asks of a router, and what the page reads in the answers.

Paths, queries, headers, bodies and fields are those of the page's source (tools/ui of llama.cpp, in the sdist of
images/worker/llama-cpp.txt): models.service.ts, props.service.ts, chat.service.ts, and the stores that call them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import pytest

from tests.support.fake_hub.faults import Fault
from tests.support.fake_hub.repositories import HubRepository
from tests.support.fake_hub.server import FakeHub
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import stack_of_processes
from worker.clockwork import make_model

pytestmark = pytest.mark.engines

REPO: Final = "clock/work-GGUF"
DOWNLOADED: Final = f"{REPO}:Q4_K_M"
SLASHED: Final = "org/second:Q4_K_M"
"""A name with the characters that the page escapes."""
DEADLINE_S: Final = 60
STATUSES: Final = frozenset({"loaded", "unloaded", "loading", "downloading", "failed", "sleeping"})
READ_PARAMETERS: Final = frozenset(
    {
        *("temperature", "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "repeat_last_n"),
        *("repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"),
        *("dry_allowed_length", "dry_penalty_last_n", "max_tokens", "samplers", "dynatemp_range", "dynatemp_exponent"),
    }
)
"""Of `default_generation_settings.params`: the defaults that the page's settings show."""


class Page:
    """The page's services. It is loaded from the gateway's own origin, and sends JSON headers with every request that
    is not said to be without."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._json = {"Content-Type": "application/json", "Origin": url, "Sec-Fetch-Site": "same-origin"}

    async def request(self, method: str, path: str, body: Any = None, *, bare: bool = False) -> tuple[int, Any]:
        """Status and JSON of an answer; `bare`: without the header of JSON."""
        data = None if body is None else json.dumps(body)
        headers = {} if bare else self._json
        async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
            text = await answer.text()
        return answer.status, json.loads(text) if text else None

    async def read_props(self, model: str | None = None) -> tuple[int, Any]:
        query = "" if model is None else f"model={quote(model, safe='')}&"
        return await self.request("GET", f"/props?{query}autoload=false", bare=True)

    async def list_models(self) -> dict[str, Any]:
        """`ModelsService.list`, by id."""
        status, answer = await self.request("GET", "/v1/models")
        assert status == 200
        return {each["id"]: each for each in answer["data"]}

    async def change(self, method: str, path: str, model: str) -> None:
        """A load, an unload, a download or a removal, each of which answers before it is done."""
        if method == "DELETE":
            done = await self.request(method, f"{path}?model={quote(model, safe='')}")
        else:
            done = await self.request(method, path, {"model": model})
        assert done == (200, {"success": True})

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[Feed]:
        """`ModelsService.watchModelEvents`: the page names no event to go on after."""
        async with self._session.get(f"{self._url}/models/sse") as answer:
            assert answer.status == 200
            yield Feed(answer)

    @asynccontextmanager
    async def chat(self, conversation: str, **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """`ChatService.sendMessage`: a stream that the page may read again."""
        body = {
            "messages": [{"content": "Hello", "role": "user"}],
            "return_progress": True,
            "sse_ping_interval": 1,
            "stream": True,
            "reasoning_format": "auto",
            "reasoning_control": True,
            "backend_sampling": False,
            "timings_per_token": True,
            **fields,
        }
        headers = {**self._json, "X-Conversation-Id": conversation}
        path = f"{self._url}/v1/chat/completions"
        async with self._session.post(path, data=json.dumps(body), headers=headers) as answer:
            yield answer

    async def read_again(self, conversation: str, offset: int) -> tuple[int, bytes]:
        """`ChatService.resumeStream`: status, and what is left of the stream from that byte on."""
        query = f"conv_id={quote(conversation, safe='')}&from={offset}"
        async with self._session.get(f"{self._url}/v1/stream?{query}") as answer:
            return answer.status, await answer.read()


class Feed:
    """The events of models, as the page splits them."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                record = (await self._answer.content.readuntil(b"\n\n")).decode()
                data = "".join(line[6:] for line in record.splitlines() if line.startswith("data: "))
                if data:
                    event: dict[str, Any] = json.loads(data)
                    return event

    async def of(self, model: str, name: str) -> dict[str, Any]:
        while True:
            event = await self.next()
            if (event["model"], event["event"]) == (model, name):
                return event

    async def reaches(self, model: str, target: str) -> str:
        """`waitForStatus` and `applyModelStatus`: `target`, or `failed` where the page shows that a load has failed."""
        while True:
            data = (await self.of(model, "model_status"))["data"]
            if data["status"] == "unloaded" and data.get("exit_code", 0) != 0:
                return "failed"
            if data["status"] == target:
                return target


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    file = tmp_path_factory.mktemp("hub") / "work-Q4_K_M.gguf"
    make_model(file)
    with FakeHub([HubRepository(REPO, {file.name: file})]) as made:
        yield made


@pytest.fixture(scope="module")
def stack(hub: FakeHub) -> Iterator[RoundhouseStack]:
    """A Roundhouse with two models on real llama-servers, and one that cannot be loaded."""
    with stack_of_processes() as stack:
        listen = f"unix:{stack.root}/t.sock"
        stack.settings |= {"ROUNDHOUSE_TRANSFERS_LISTEN": listen, "ROUNDHOUSE_TRANSFERS_URL": listen}
        stack.settings |= {"ROUNDHOUSE_HUB_ENDPOINT": hub.endpoint, "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS": "127.0.0.1"}
        make_model(stack.models / "clockwork.gguf")
        (stack.models / "torn.gguf").write_bytes((stack.models / "clockwork.gguf").read_bytes()[:5000])
        first = {"model_path": "clockwork.gguf", "llama_server_n_ctx": 1024, "llama_server_threads": 1}
        on_demand = first | {"enabled": False, "autoload": True}
        torn = on_demand | {"model_path": "torn.gguf", "memory_mib": 50}
        stack.declare({"first": first | {"aliases": ["short"]}, SLASHED: on_demand, "torn": torn})
        stack.start("transfers")
        asyncio.run(stack.open("first"))
        yield stack


async def refuse_files(page: Page, hub: FakeHub) -> None:
    """Let the hub refuse the file of the next download for some tries, once the download has begun."""
    before = len(hub.requests)
    await page.request("POST", "/v1/admin/downloads/inspect", {"reference": DOWNLOADED})
    looked = sum(each.server == "storage" for each in hub.requests[before:])
    hub.faults.add(Fault("status", skip=looked, times=5))


@pytest.fixture
async def page(stack: RoundhouseStack) -> AsyncIterator[Page]:
    async with aiohttp.ClientSession() as session:
        yield Page(session, stack.url)


async def test_the_page_finds_a_router_and_lists_its_models(page: Page) -> None:
    status, props = await page.read_props()
    assert (status, props["role"], props["cors_proxy_enabled"]) == (200, "router", False)
    assert props["default_generation_settings"] == {"n_ctx": 0, "params": {}}
    assert props["ui_settings"] == {}
    models = await page.list_models()
    assert {name: each["status"]["value"] for name, each in models.items()} == {
        "first": "loaded",
        SLASHED: "unloaded",
        "torn": "unloaded",
    }
    for each in models.values():
        assert each["status"]["value"] in STATUSES
        assert (each["object"], each["tags"], each["status"]["args"]) == ("model", [], [])
        assert each["architecture"]["input_modalities"] == ["text"]
    assert [each["aliases"] for each in models.values()] == [["short"], [], []]


async def test_the_page_reads_what_a_loaded_model_can_do_and_loads_none_for_it(page: Page) -> None:
    status, props = await page.read_props("first")
    assert status == 200
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert props["ui"] is True, "else the page hides the model"
    assert "add_generation_prompt" in props["chat_template"]
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 1024
    assert not READ_PARAMETERS - settings["params"].keys()
    status, refused = await page.read_props(SLASHED)
    assert (status, refused["error"]["code"]) == (503, "model_not_loaded")
    assert isinstance(refused["error"]["message"], str), "the page shows it"
    assert (await page.list_models())[SLASHED]["status"]["value"] == "unloaded"


async def test_the_page_loads_and_unloads_by_the_events(page: Page) -> None:
    async with page.follow() as feed:
        await page.change("POST", "/models/load", SLASHED)
        assert await feed.reaches(SLASHED, "loading") == "loading"
        assert await feed.reaches(SLASHED, "loaded") == "loaded"
        assert (await page.list_models())[SLASHED]["status"]["value"] == "loaded"
        assert (await page.read_props(SLASHED))[0] == 200
        await page.change("POST", "/models/unload", SLASHED)
        assert await feed.reaches(SLASHED, "unloaded") == "unloaded"
        await page.change("POST", "/models/load", "torn")
        assert await feed.reaches("torn", "loaded") == "failed"
        failed = (await page.list_models())["torn"]["status"]
        assert (failed["value"], failed["failed"]) == ("unloaded", True)
        assert failed["exit_code"] != 0


async def test_the_page_streams_reads_again_and_stops(page: Page) -> None:
    conversation = f"0d9c7a1e-8f53-4c1c-9d06-2c0a36a3a101::{SLASHED}"
    samplers = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    chosen = {"temperature": 0.8, "top_k": 40, "typ_p": 1, "max_tokens": -1, "samplers": samplers}
    # The model is not loaded: the page asks for it, and the request waits.
    async with page.chat(conversation, model=SLASHED, **chosen) as answer:
        assert answer.status == 200
        sent = await answer.read()
    lines = [line[6:] for line in sent.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert {each["model"] for each in chunks} == {SLASHED}
    assert len({each["id"] for each in chunks}) == 1
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    assert "".join(each.get("content") or "" for each in deltas) == SENTENCE
    progress = [each["prompt_progress"] for each in chunks if "prompt_progress" in each]
    assert progress[-1].keys() == {"total", "cache", "processed", "time_ms"}
    assert progress[-1]["processed"] == progress[-1]["total"] > 0
    # `timings_per_token`: not in the last chunk alone.
    timings = [each["timings"] for each in chunks if "timings" in each]
    assert len(timings) > 5
    assert {"prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "cache_n"} <= timings[-1].keys()
    # Another tab finds the stream, and reads it from a byte on.
    status, found = await page.request("POST", "/v1/streams/lookup", {"conversation_ids": [conversation, "unknown"]})
    assert (status, [each["conversation_id"] for each in found]) == (200, [conversation])
    assert (found[0]["is_done"], found[0]["total_bytes"]) == (True, len(sent))
    assert found[0]["started_at"] <= found[0]["completed_at"]
    assert await page.read_again(conversation, 100) == (200, sent[100:])
    assert (await page.request("DELETE", f"/v1/stream?conv_id={quote(conversation, safe='')}", bare=True))[0] == 204
    assert (await page.read_again(conversation, 0))[0] == 404


async def test_the_page_reads_a_prompt_ahead_of_the_next_question(page: Page) -> None:
    # `ChatService.preEncode`, which asks for no token.
    body = {"messages": [{"content": "Hello", "role": "user"}], "n_predict": 0, "stream": False, "model": "first"}
    status, answer = await page.request("POST", "/v1/chat/completions", body)
    assert (status, answer["usage"]["prompt_tokens"] > 0) == (200, True)


async def test_the_page_downloads_a_model_and_removes_it(page: Page, stack: RoundhouseStack, hub: FakeHub) -> None:
    # The file comes once the page has been told how far the download is.
    await refuse_files(page, hub)
    async with page.follow() as feed:
        await page.change("POST", "/models", DOWNLOADED)
        progress = (await feed.of(DOWNLOADED, "download_progress"))["data"]["progress"]
        hub.faults.clear()
        [(path, bytes_of)] = progress.items()
        assert (path, bytes_of["done"]) == (f"{REPO}/work-Q4_K_M.gguf", 0)
        assert bytes_of["total"] == (stack.models / "clockwork.gguf").stat().st_size
        await feed.of(DOWNLOADED, "download_finished")
        # It is loaded by a load, or by a request, and not because it is here.
        assert await feed.reaches(DOWNLOADED, "unloaded") == "unloaded"
        assert (await page.list_models())[DOWNLOADED]["can_remove"] is True
        async with page.chat(f"c::{DOWNLOADED}", model=DOWNLOADED) as answer:
            assert answer.status == 200
            assert b"fox" in await answer.read()
        status, refused = await page.request("DELETE", f"/models?model={quote(DOWNLOADED, safe='')}")
        assert (status, refused["error"]["code"]) == (409, "state_conflict")
        # The first load of a downloaded model tells of no second download. An attempt may fail on a busy machine.
        told: list[dict[str, Any]] = []
        while [each["status"] for each in told[-1:]] != ["loaded"]:
            event = await feed.next()
            assert event["event"] == "model_status", event
            told.append(event["data"])
        assert {each["status"] for each in told if not each.get("failed")} == {"loading", "loaded"}, told
        await page.change("POST", "/models/unload", DOWNLOADED)
        # It is unloaded where it can be deleted, and not before.
        assert await feed.reaches(DOWNLOADED, "unloaded") == "unloaded"
        await page.change("DELETE", "/models", DOWNLOADED)
        await feed.of(DOWNLOADED, "model_remove")
    assert DOWNLOADED not in await page.list_models()
    assert not (stack.models / REPO).exists()


async def test_the_page_pauses_a_download_and_cancels_it(page: Page, stack: RoundhouseStack, hub: FakeHub) -> None:
    await refuse_files(page, hub)
    async with page.follow() as feed:
        await page.change("POST", "/models", DOWNLOADED)
        await feed.of(DOWNLOADED, "download_progress")
        assert (await page.list_models())[DOWNLOADED]["status"]["value"] == "downloading"
        await page.change("POST", "/models/unload", DOWNLOADED)
        await feed.of(DOWNLOADED, "download_failed")
        assert await feed.reaches(DOWNLOADED, "unloaded") == "unloaded"
        await page.change("POST", "/models", DOWNLOADED)
        assert await feed.reaches(DOWNLOADED, "downloading") == "downloading"
        await page.change("DELETE", "/models", DOWNLOADED)
        await feed.of(DOWNLOADED, "model_remove")
    hub.faults.clear()
    assert DOWNLOADED not in await page.list_models()
    assert not (stack.models / REPO).exists()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/tools", {"tool": "file_glob_search", "params": {"path": "~"}}, 403),
        ("GET", "/cors-proxy?url=http%3A%2F%2F127.0.0.1%2F", None, 404),
        ("GET", "/slots?model=first", None, 403),
        ("POST", "/v1/chat/completions/control", {"id": "chatcmpl-1", "action": "reasoning_end"}, 404),
    ],
)
async def test_what_the_page_does_without_is_refused_with_a_message(
    page: Page, method: str, path: str, body: Any, status: int
) -> None:
    answered, refused = await page.request(method, path, body)
    assert answered == status
    assert refused["error"]["message"]


async def test_the_page_is_told_that_there_are_no_tools(page: Page) -> None:
    assert await page.request("GET", "/tools", None) == (200, [])
