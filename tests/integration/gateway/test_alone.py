"""The gateway alone: `ROUNDHOUSE_ASSISTANT` is off, or the package is not there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_controller import FakeController, route
from tests.fakes.fake_scripted_engine import script, scripted
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.support.api_families import FAMILIES, STREAMING, Family
from tests.support.ports import free_port

REPOSITORY = Path(__file__).parents[3]
SERVED = ("/v1/models", "/health", "/health/ready", "/metrics", "/openapi.json")
KEPT = (
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/chat/completions"),
    ("GET", "/v1/stream/a"),
    ("POST", "/mcp"),
    ("GET", "/tools"),
    ("GET", "/v1/documents"),
    ("GET", "/v1/files"),
    ("GET", "/v1/vector_stores"),
)
"""Routes of the assistant's."""
WITHOUT = """
import runpy, sys
sys.path = [sys.argv[1], *(path for path in sys.path if path not in ("", sys.argv[2]))]
runpy.run_module("gateway", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
async def alone() -> AsyncIterator[GatewayHarness]:
    async with gateway_harness(assistant=False) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("family", "stream"), [*((each, False) for each in FAMILIES), *((each, True) for each in STREAMING)], ids=str
)
async def test_it_serves_every_family(family: Family, stream: bool, alone: GatewayHarness) -> None:
    events = b"".join(family.events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(events)
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(family.whole)
    async with scripted(script(head + events if stream else whole + family.whole)) as engine:
        await alone.publish(family.route("m", engine.url))
        reply = await alone.post(family.path, **family.body("m", **({"stream": True} if stream else {})))
        assert reply.status == 200, reply.body
        assert family.ends.search(reply.body.encode()) if stream else reply.success
    await alone.idle()


async def test_its_routes_are_there_and_the_assistants_are_not(alone: GatewayHarness) -> None:
    for path in SERVED:
        assert (await alone.get(path)).status == 200, path
    for method, path in KEPT:
        reply = await alone.request(method, path)
        assert (reply.status, reply.code) in ((404, "unknown_route"), (405, "method_not_allowed")), path


async def test_a_response_is_made_and_not_kept(alone: GatewayHarness) -> None:
    async with engines(1) as (engine,):
        await alone.publish(route("m", [engine.url]))
        made = (await alone.post("/v1/responses", model="m", input="Hi")).success
        assert (made["status"], made["store"]) == ("completed", False)
        assert made["id"].startswith("resp_")


@pytest.mark.parametrize(
    ("name", "value"),
    [("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True)],
)
async def test_what_must_be_kept_is_refused(name: str, value: Any, alone: GatewayHarness) -> None:
    await refused(alone, "/v1/responses", name, input="Hi", **{name: value})


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("tool", [{"type": "file_search", "vector_store_ids": ["vs"]}, {"type": "mcp"}], ids=str)
async def test_tools_that_the_gateway_would_run_are_refused(
    path: str, tool: dict[str, Any], alone: GatewayHarness
) -> None:
    function = {"type": "function", "name": "f", "parameters": {}}
    await refused(alone, path, "tools[1]", input="Hi", tools=[function, tool])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_an_answer_that_should_be_grounded_is_refused(path: str, alone: GatewayHarness) -> None:
    await refused(alone, path, "rag", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, rag=True)


@pytest.mark.parametrize(
    ("path", "part", "place"),
    [
        ("/v1/responses", {"type": "input_file", "file_id": "file-1"}, "input[0].content[0].file_id"),
        ("/v1/responses", {"type": "input_image", "file_id": "file-1"}, "input[0].content[0].file_id"),
        ("/v1/chat/completions", {"type": "file", "file": {"file_id": "f"}}, "messages[0].content[0].file.file_id"),
        ("/v1/messages", {"type": "image", "source": {"type": "file", "file_id": "f"}},
         "messages[0].content[0].source.file_id"),
    ],
)  # fmt: skip
async def test_a_kept_file_is_refused(path: str, part: dict[str, Any], place: str, alone: GatewayHarness) -> None:
    name = "input" if path == "/v1/responses" else "messages"
    more: dict[str, Any] = {} if name == "input" else {"max_tokens": 5}
    await refused(alone, path, place, **{name: [{"role": "user", "content": [part]}]}, **more)


async def refused(alone: GatewayHarness, path: str, param: str, **fields: Any) -> None:
    async with engines(1) as (engine,):
        await alone.publish(route("m", [engine.url]))
        reply = await alone.post(path, model="m", **fields)
        error = reply.error
        assert (reply.status, error["message"].count("ROUNDHOUSE_ASSISTANT")) == (400, 1)
        assert not engine.requests
        assert path == "/v1/messages" or (reply.code, error["param"]) == ("invalid_request", param)
        assert f"`{param}`" in error["message"]


@pytest.mark.interpreted
async def test_it_serves_without_the_package(tmp_path: Path) -> None:
    """As it lies on a disk with nothing but what it imports."""
    for package in ("common", "contract", "gateway"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    controller = FakeController()
    await controller.start()
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "PYTHONPATH"))}
    settings = {
        "ROUNDHOUSE_CONTROLLER_URL": controller.url,
        "ROUNDHOUSE_MDNS": "off",
        "ROUNDHOUSE_PORT": str(port),
        "ROUNDHOUSE_STATE": str(tmp_path / "state"),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WITHOUT, str(tmp_path), str(REPOSITORY)),
        env=clean | settings,
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with engines(1) as (engine,), aiohttp.ClientSession() as client:
            await until(lambda: bool(controller.reports) or process.returncode is not None, "the gateway connects")
            gateway = GatewayHarness(controller, f"http://127.0.0.1:{port}", client)
            await gateway.publish(route("m", [engine.url]))
            async with gateway.chat() as answer:
                assert answer.status == 200
            assert (await gateway.post("/v1/responses", model="m", input="Hi")).success["store"] is False
            assert (await gateway.get("/tools")).status == 404
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        _, words = await process.communicate()
        await controller.stop()
    assert b"Traceback" not in words
    assert process.returncode == 0
