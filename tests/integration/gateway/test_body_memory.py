"""What large bodies take of a gateway's memory: never much more than the setting says, whatever is in them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness
from tests.support.campaign import campaign_count
from tests.support.gateway_process import running

MIB = 1024 * 1024
BODIES = campaign_count(6, 25)
BODY = campaign_count(4, 63) * MIB
BUDGET = campaign_count(64, 512)
"""MiB."""
WORDS = "lorem ipsum "
ANSWER = {
    "id": "a",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "data": [{"object": "embedding", "index": 0, "embedding": [1.0]}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
LONG: list[Any] = [{"role": "user", "content": WORDS * (BODY // len(WORDS))}]
MANY: list[Any] = [{"role": "user", "content": WORDS * 80}] * (BODY // 1000)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one text": ("/v1/chat/completions", {"messages": LONG}),
    "many texts": ("/v1/chat/completions", {"messages": MANY}),
    "many texts, translated": ("/v1/messages", {"messages": MANY, "max_tokens": 4}),
    "stored": ("/v1/responses", {"input": WORDS * (BODY // len(WORDS)), "store": True}),
    "embedded": ("/v1/embeddings", {"input": [WORDS * 20_000] * (BODY // (20_000 * len(WORDS)))}),
}


class SlowEngine:
    """Reads a request when `go` is set, drops its body as it comes, and answers all with the same."""

    def __init__(self) -> None:
        self.url = ""
        self.go = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.dumps(ANSWER).encode()
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                left = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
                if left > MIB // 4:
                    await self.go.wait()
                while left:
                    left -= len(await reader.read(min(left, MIB)))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body))
                writer.write(b"\r\n" + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def slow_engine() -> AsyncIterator[SlowEngine]:
    engine = SlowEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=2 * MIB)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()


def resident_mib(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


async def send(gateway: GatewayHarness, path: str, body: bytes) -> int:
    """Send a body in parts, on a connection of its own: the status."""

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 256 * 1024):
            yield body[start : start + 256 * 1024]

    headers = {"content-length": str(len(body)), "content-type": "application/json"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client,
        client.post(gateway.url + path, data=parts(), headers=headers) as answer,
    ):
        await answer.read()
        return answer.status


@pytest.mark.parametrize("case", CASES)
async def test_bodies_take_no_more_memory_than_the_setting_says(case: str, record_property: Any) -> None:
    path, fields = CASES[case]
    body = json.dumps({"model": "m", **fields}, separators=(",", ":")).encode()
    async with slow_engine() as engine, running(ROUNDHOUSE_BODY_MEMORY_MIB=str(BUDGET)) as (process, gateway):
        await gateway.publish(route("m", [engine.url], apis=("/v1/chat/completions", "/v1/embeddings")))
        assert (
            (await gateway.chat()).status,
            (await gateway.post("/v1/responses", model="m", input="Hi", store=True)).status,
        ) == (200, 200)
        idle = resident_mib(process.pid, "VmRSS")
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the peak counts from here
        sending = [asyncio.create_task(send(gateway, path, body)) for _ in range(BODIES)]
        await asyncio.sleep(0)
        engine.go.set()
        assert Counter(await asyncio.gather(*sending)) == {200: BODIES}
        peak = resident_mib(process.pid, "VmHWM") - idle
    record_property(f"figure: peak of {case}, MiB above idle", round(peak))
    # Beside bodies, each connection takes what is read at a time, and requests take what they take.
    assert peak <= 1.3 * BUDGET


async def test_a_body_whose_values_would_take_too_much_is_refused() -> None:
    async with slow_engine() as engine, running(ROUNDHOUSE_BODY_MEMORY_MIB=str(BUDGET)) as (process, gateway):
        engine.go.set()
        await gateway.publish(route("m", [engine.url]))
        idle = resident_mib(process.pid, "VmRSS")
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        for values in (b"[],", b"{},", b"1000,"):
            body = b'{"model":"m","messages":[],"x":[%b1]}' % (values * (BODY // 5))
            answers = await asyncio.gather(*(send(gateway, "/v1/chat/completions", body) for _ in range(3)))
            assert Counter(answers) == {413: 3}
            small = b'{"model":"m","messages":[],"x":[%b1]}' % (values * 60_000)
            assert await send(gateway, "/v1/chat/completions", small) == 200
        assert resident_mib(process.pid, "VmHWM") - idle <= 1.3 * BUDGET
