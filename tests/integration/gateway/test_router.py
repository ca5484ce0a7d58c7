"""The routes of llama-server's router mode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from contract.errors import RoundhouseError
from contract.status import ModelState
from gateway.control import admin_requests
from tests.fakes.fake_admin import PINNED, FakeDownloads, ReceivedRequest, download
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness


class Reader:
    """A client of `GET /models/sse`."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.last_id = ""

    async def next(self) -> dict[str, Any] | None:
        """The next event; None: the stream has ended."""
        async for line in self._answer.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "data":
                event: dict[str, Any] = json.loads(value)
                return event
        return None


@asynccontextmanager
async def following(gateway: GatewayHarness, after: str | None = None) -> AsyncIterator[Reader]:
    """A reader whose stream has begun."""
    headers = {} if after is None else {"last-event-id": after}
    async with gateway.get("/models/sse", headers=headers) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert await response.content.readline() == b": ok\n"
        yield Reader(response)


async def test_events_of_a_load_come_in_order(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m", state=ModelState.UNLOADED))
    async with following(gateway) as reader:
        await gateway.publish(route("m", state=ModelState.LOADING, progress=0.25))
        await gateway.publish(route("m", state=ModelState.LOADED))
        progress = {"stages": ["text_model"], "current": "text_model", "value": 0.25}
        assert await reader.next() == {
            "model": "m", "event": "model_status", "data": {"status": "loading", "progress": progress},
        }  # fmt: skip
        assert await reader.next() == {"model": "m", "event": "model_status", "data": {"status": "loaded"}}
        await gateway.publish(route("n", state=ModelState.FAILED))
        assert await reader.next() == {"model": "m", "event": "model_remove"}
        assert await reader.next() == {"model": "*", "event": "models_reload"}
        assert await reader.next() == {
            "model": "n", "event": "model_status", "data": {"status": "unloaded", "failed": True, "exit_code": 1},
        }  # fmt: skip


async def test_a_reader_that_comes_back_loses_nothing(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m", state=ModelState.UNLOADED))
    async with following(gateway) as reader:
        await gateway.publish(route("m", state=ModelState.LOADING))
        await reader.next()
        last_id = reader.last_id
    await gateway.publish(route("m", state=ModelState.LOADED))
    await gateway.publish(route("m", state=ModelState.UNLOADING))  # no event: `unloaded` means that a load is allowed
    await gateway.publish(route("m", state=ModelState.UNLOADED))
    async with following(gateway, last_id) as reader:
        assert [(await reader.next() or {})["data"]["status"] for _ in range(2)] == ["loaded", "unloaded"]
    name, _, number = last_id.rpartition(".")
    for of_another in (f"{name}.999999", f"{name}x.{number}", number, "x", ""):
        async with following(gateway, of_another) as reader:
            assert await reader.next() == {"model": "*", "event": "models_reload"}, "it may have missed any"
            resumed_id = reader.last_id
    await gateway.publish(route("m", state=ModelState.LOADED), route("n"))
    async with following(gateway, resumed_id) as reader:
        assert [(await reader.next() or {})["event"] for _ in range(2)] == ["models_reload", "model_status"]


async def test_a_stop_ends_readers() -> None:
    async with gateway_harness() as gateway, following(gateway) as reader:
        gateway.stop()
        assert await reader.next() is None


def changes_asked(gateway: GatewayHarness) -> list[ReceivedRequest]:
    return [each for each in gateway.controller.admin.requests if each.method != "GET"]


async def test_load_and_unload_are_asked_of_the_controller(gateway: GatewayHarness) -> None:
    await gateway.publish(route("org/m:Q4", aliases=("short",), state=ModelState.UNLOADED))
    for step, expected in (("load", {}), ("unload", {"hold": False})):
        assert (await gateway.post(f"/models/{step}", model="short")).result == (200, {"success": True})
        asked = changes_asked(gateway)[-1]
        assert (asked.method, asked.target) == ("POST", f"/v1/admin/models/org/m%3AQ4/{step}?wait=false")
        assert asked.headers["x-roundhouse-actor"] == "api 127.0.0.1"
        assert json.loads(asked.body) == expected
    assert (await gateway.post("/models/load", model="nobody")).refusal == (404, "unknown_model")
    await gateway.controller.stop()
    assert (await gateway.post("/models/load", model="short")).refusal == (503, "controller_unavailable")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "application/json", None])
async def test_a_body_needs_no_content_type(gateway: GatewayHarness, kind: str | None) -> None:
    """As curl's `-d` sends it."""
    await gateway.publish(route("m", state=ModelState.UNLOADED))
    headers = {} if kind is None else {"content-type": kind}
    body: Any = {"data": b'{"model": "m", "other": 1}', "skip_auto_headers": [] if kind else ["content-type"]}
    assert (await gateway.request("POST", "/models/load", headers=headers, **body)).result == (200, {"success": True})
    assert changes_asked(gateway)[-1].target == "/v1/admin/models/m/load?wait=false"
    # So a page of another origin could send it without being asked first; it is refused for its origin.
    foreign = headers | {"origin": "https://evil.example"}
    reply = await gateway.request("POST", "/models/load", headers=foreign, **body)
    assert reply.refusal == (403, "forbidden_origin")
    assert len(changes_asked(gateway)) == 1


NAMELESS: list[tuple[bytes, int, str]] = [
    (b"", 400, "invalid_request"),
    (b"{}", 400, "invalid_request"),
    (b'{"model": ""}', 400, "invalid_request"),
    (b'{"model": 1}', 400, "invalid_request"),
    (b'{"model": "%b"}' % (b"m" * 401), 400, "invalid_request"),
    (b"[]", 400, "invalid_json"),
    (b"model=m", 400, "invalid_json"),
    (b" " * (64 * 1024 + 1), 413, "body_too_large"),
]


@pytest.mark.parametrize("path", ["/models", "/models/load", "/models/unload"])
async def test_a_body_that_names_no_model_changes_nothing(gateway: GatewayHarness, path: str) -> None:
    await gateway.publish(route("m", state=ModelState.UNLOADED))
    for body, *refusal in NAMELESS:
        assert (await gateway.request("POST", path, data=body)).refusal == tuple(refusal), body[:20]
    assert not changes_asked(gateway)


@pytest.fixture
async def fake(gateway: GatewayHarness) -> FakeDownloads:
    """The downloads of the controller, of which there are none; the gateway follows them."""
    fake = FakeDownloads()
    gateway.controller.admin.answer = gateway.controller.admin.downloads = fake
    async with asyncio.timeout(60):
        await fake.followed.wait()
    return fake


async def test_a_controller_that_falls_silent_is_followed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_requests, "SILENCE_S", 0.05)
    fake = FakeDownloads()
    async with gateway_harness() as gateway, asyncio.timeout(60):
        gateway.controller.admin.downloads = fake
        for _ in range(2):
            await fake.followed.wait()
            fake.followed.clear()


async def status_of(gateway: GatewayHarness, model: str, path: str = "/models") -> dict[str, Any]:
    [status] = [each["status"] for each in (await gateway.get(path)).success["data"] if each["id"] == model]
    return dict(status)


async def test_a_download_is_told_from_its_order_to_its_end(gateway: GatewayHarness, fake: FakeDownloads) -> None:
    name = "user/tiny-GGUF:Q8_0"
    await gateway.publish(route("m"))
    async with following(gateway) as reader:
        assert (await gateway.post("/models", model=name)).result == (200, {"success": True})
        declared, ordered = changes_asked(gateway)[-2:]
        assert (declared.method, declared.target) == ("PUT", "/v1/admin/declarations/models/user/tiny-GGUF%3AQ8_0")
        # A download loads nothing: a request, or a load, does.
        on_demand = {"enabled": False, "autoload": True}
        assert json.loads(declared.body) == {"source": PINNED, "backend": "llama_server", **on_demand}
        assert (ordered.target, json.loads(ordered.body)) == ("/v1/admin/downloads", {"reference": PINNED})
        # Whichever comes first, the download or the table that has the model: nothing is lost.
        fake.show(download("downloading", 25))
        await gateway.publish(route("m"), route(name, state=ModelState.UNLOADED, source=PINNED))
        assert await reader.next() == {"model": "*", "event": "models_reload"}
        progress = {"user/tiny-GGUF/tiny.gguf": {"done": 25, "total": 100}}
        status: Any = {"model": name, "event": "model_status"}
        while (event := await reader.next()) == status | {"data": {"status": "unloaded"}}:
            pass  # the table came first
        assert event == status | {"data": {"status": "downloading"}}
        assert await reader.next() == {"model": name, "event": "download_progress", "data": {"progress": progress}}
        for path in ("/models", "/v1/models"):
            status = await status_of(gateway, name, path)
            assert (status["value"], status["progress"]) == ("downloading", progress)
        last_id = reader.last_id
    fake.show(download("finished", 100))
    async with following(gateway, last_id) as reader:
        assert await reader.next() == {"model": name, "event": "download_finished"}
        assert await reader.next() == {"model": name, "event": "model_status", "data": {"status": "unloaded"}}
    assert (await status_of(gateway, name))["value"] == "unloaded"


async def test_unload_cancels_a_download_and_the_same_order_goes_on_with_it(
    gateway: GatewayHarness, fake: FakeDownloads
) -> None:
    unloaded = route("user/tiny-GGUF:Q8_0", state=ModelState.UNLOADED, source=PINNED)
    await gateway.publish(unloaded)
    async with following(gateway) as reader:
        fake.show(download("downloading", 1))
        assert [(await reader.next() or {})["event"] for _ in range(2)] == ["model_status", "download_progress"]
        assert (await gateway.post("/models/unload", model=unloaded.name)).status == 200
        assert [each.target.rpartition("/")[2] for each in changes_asked(gateway)] == ["unload?wait=false", "dl_1"]
        fake.show(download("cancelled", 1))
        assert [(await reader.next() or {})["event"] for _ in range(2)] == ["download_failed", "model_status"]
    assert (await gateway.post("/models", model=unloaded.name)).status == 200
    asked = changes_asked(gateway)[-1]
    assert (asked.target, json.loads(asked.body)) == ("/v1/admin/downloads", {"reference": PINNED})


async def test_what_cannot_be_downloaded_is_not_declared(gateway: GatewayHarness, fake: FakeDownloads) -> None:
    await gateway.publish(route("m"))
    assert (await gateway.post("/models", model="m")).refusal == (409, "state_conflict")
    fake.refusals["POST /v1/admin/downloads"] = RoundhouseError("models_disk_full", "It needs 5 GiB.")
    assert (await gateway.post("/models", model="user/tiny-GGUF")).refusal == (507, "models_disk_full")
    last = changes_asked(gateway)[-1]
    assert (last.method, last.target) == ("DELETE", "/v1/admin/declarations/models/user/tiny-GGUF")


async def test_a_model_is_deleted_unless_it_is_loaded_or_not_ours(gateway: GatewayHarness, fake: FakeDownloads) -> None:
    await gateway.publish(
        route("files", state=ModelState.UNLOADED, source=PINNED),
        route("hand", state=ModelState.UNLOADED, is_runtime_declared=True),
        route("yard", state=ModelState.UNLOADED),
        route("yard-loaded"),
        route("loaded", source=PINNED),
        route("loading", state=ModelState.LOADING, source=PINNED),
        route("asleep", state=ModelState.SLEEPING, source=PINNED),
        route("m", state=ModelState.UNLOADED, source=PINNED),
    )
    unknown = RoundhouseError("unknown_declaration", "There is none.")
    fake.refusals["DELETE /v1/admin/declarations/models/files"] = unknown
    for model, code in (
        ("loaded", "state_conflict"),
        ("loading", "state_conflict"),
        ("asleep", "state_conflict"),
        ("hand", "models_file_kept"),
        ("files", "declared_in_files"),
        ("yard", "declared_in_files"),
        ("yard-loaded", "declared_in_files"),
        ("nobody", "unknown_model"),
    ):
        assert (await gateway.request("DELETE", "/models", params={"model": model})).code == code
    assert [each.target for each in changes_asked(gateway)] == ["/v1/admin/declarations/models/files"]
    assert (await gateway.request("DELETE", "/models", params={"model": "m"})).result == (200, {"success": True})
    dropped, removed = changes_asked(gateway)[-2:]
    assert dropped.target == "/v1/admin/declarations/models/m"
    assert (removed.method, removed.target) == ("DELETE", f"/v1/admin/models/files?model={quote(PINNED, safe='')}")


async def test_the_list_has_command_lines_and_reads_the_files_where_asked(
    gateway: GatewayHarness, fake: FakeDownloads
) -> None:
    own = route("own", source=PINNED, is_runtime_declared=True)
    failed_route = route("n", state=ModelState.FAILED, exit_code=-9)
    await gateway.publish(route("m"), failed_route, own, route("files", source=PINNED))
    removable = {each["id"]: each["can_remove"] for each in (await gateway.get("/models")).body["data"]}
    assert removable == {"files": False, "m": False, "n": False, "own": True}
    assert (await status_of(gateway, "m"))["args"] == ["llama-server", "--port", "1"]
    failed = await status_of(gateway, "n")
    assert (failed["value"], failed["failed"], failed["exit_code"]) == ("unloaded", True, -9)
    assert (await status_of(gateway, "m", "/v1/models"))["args"] == []
    assert changes_asked(gateway) == []
    await status_of(gateway, "m", "/models?reload=1")
    assert [each.target for each in changes_asked(gateway)] == ["/v1/admin/reload"]


async def test_props_without_a_model_are_the_routers(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m", autoload=True))
    for query in ("", "?autoload=false", "?model="):
        props = (await gateway.get(f"/props{query}")).body
        assert (props["role"], props["models_autoload"]) == ("router", True)


async def test_autoload_false_loads_nothing(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True))
    for query in ("autoload=false", "x=1&autoload=0"):
        reply = await gateway.post(f"/v1/chat/completions?{query}", model="m", messages=[])
        assert reply.refusal == (503, "model_not_loaded")
    assert (await gateway.get("/props?model=m&autoload=false")).refusal == (503, "model_not_loaded")
    report = await gateway.controller.report_where(lambda _: True)
    assert report.demand == {}
