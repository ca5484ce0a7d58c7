"""The retrieval program for tests: in this process over fakes of its parts, behind a gateway, and as a process of its
own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import uvicorn

from common.clock_agreement import ClockReading
from common.internal_tokens import RETRIEVAL_TOKEN
from common.program import TokenCheck
from common.shared_token import SharedToken
from common.trusted_clock import TrustedClock
from contract.retrieval import ADMIN_HEADER, TENANT_HEADER
from contract.routing import ModelRoute
from retrieval.assembly import Retrieval
from retrieval.parsing.base import Parser
from retrieval.settings import RetrievalSettings
from retrieval.vector_store.base import VectorStore
from tests.fakes.fake_retrieval_parts import FakeModels, FakeParser, MemoryVectorStore
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.http_client import answers
from tests.support.ports import free_port
from tests.support.wait import until


@dataclass
class ManualClock:
    """Time that passes only when a test says so."""

    now: float = 1_800_000_000.0
    """Unix time in seconds."""
    ahead_s: float = 0.0
    """Seconds by which the wall clock is wrong."""

    def read(self) -> ClockReading:
        return ClockReading(self.now + self.ahead_s, self.now, "boot")


@dataclass
class RetrievalHarness:
    """What a test works with: requests as the gateway sends them."""

    retrieval: Retrieval
    client: httpx.AsyncClient
    store: Any
    models: FakeModels
    parser: Any
    clock: ManualClock

    def skip_time(self, seconds: float) -> None:
        """Let that much time pass at once."""
        self.clock.now += seconds
        self.retrieval.pipeline.wake()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tenant: str = "alice",
        is_admin: bool = False,
        **options: Any,
    ) -> httpx.Response:
        headers = {TENANT_HEADER: quote(tenant), ADMIN_HEADER: "1" if is_admin else "0", "x-request-id": "req-1"}
        if body is not None:
            options["content"] = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers["content-type"] = "application/json"
        return await self.client.request(method, path, headers=headers, **options)

    async def add(self, text: str, document_id: str | None = None, *, tenant: str = "alice", **fields: Any) -> Any:
        """Add a document, and wait until it is searchable."""
        body = {"text": text, **({} if document_id is None else {"id": document_id}), **fields}
        answer = await self.request("POST", "/v1/documents?wait=true", body, tenant=tenant)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def search(self, query: str, *, tenant: str = "alice", **fields: Any) -> list[Any]:
        answer = await self.request("POST", "/v1/search", {"query": query, **fields}, tenant=tenant)
        assert answer.status_code == 200, answer.text
        hits: list[Any] = answer.json()["data"]
        return hits

    async def texts(self, query: str, *, tenant: str = "alice", **fields: Any) -> list[str]:
        """Return the texts of a search's hits."""
        return [hit["text"] for hit in await self.search(query, tenant=tenant, **fields)]


@asynccontextmanager
async def retrieval_harness(
    folder: Path,
    *,
    store: VectorStore | None = None,
    models: FakeModels | None = None,
    parser: Parser | None = None,
    clock: ManualClock | None = None,
    fails: bool = False,
    **settings: Any,
) -> AsyncIterator[RetrievalHarness]:
    """Run a retrieval program with its state in `folder`. `fails`: whether its work in the background must fail."""
    store, models, parser = store or MemoryVectorStore(), models or FakeModels(), parser or FakeParser()
    clock = clock or ManualClock()
    trusted_clock = TrustedClock(folder / "clock.json", clock.read)
    retrieval = Retrieval(RetrievalSettings(state=folder, **settings), store, parser, models, trusted_clock)
    async with retrieval:
        transport = httpx.ASGITransport(retrieval.build_app(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://retrieval") as client:
            yield RetrievalHarness(retrieval, client, store, models, parser, clock)
        assert retrieval.has_failed.is_set() is fails, "work in the background ended"


TOKEN = "a-token-of-both-programs"


@asynccontextmanager
async def retrieval_gateway(
    folder: Path, gateway_token: str = TOKEN, **options: Any
) -> AsyncIterator[tuple[GatewayHarness, RetrievalHarness]]:
    """A gateway, and retrieval on a port with a token. `options`: of `retrieval_harness`."""
    own, other = folder / "own-token", folder / "gateway-token"
    own.write_text(TOKEN)
    other.write_text(gateway_token)
    port = free_port()
    async with retrieval_harness(folder, retrieval_max_file_mib=1, **options) as retrieval:
        app = TokenCheck(retrieval.retrieval.build_app(), SharedToken(own, "the token"), RETRIEVAL_TOKEN)
        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        url = f"http://127.0.0.1:{port}"
        try:
            settings: dict[str, Any] = {
                "retrieval_url": url,
                "retrieval_token_file": other,
                "retrieval_max_file_mib": 1,
            }
            async with gateway_harness(**settings) as gateway:
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.01)
                yield gateway, retrieval
        finally:
            server.should_exit = True
            await task


@dataclass(frozen=True, slots=True)
class DocumentsSite:
    """A gateway that knows a retrieval program."""

    gateway: GatewayHarness
    retrieval_pid: int

    @property
    def url(self) -> str:
        return self.gateway.url


@contextlib.asynccontextmanager
async def documents_site(folder: Path, *models: ModelRoute, **settings: str) -> AsyncIterator[DocumentsSite]:
    """Start a gateway with these models, and a retrieval program with `settings` (names without `ROUNDHOUSE_`), whose
    state is in `folder`. The program has ended when the block ends."""
    address = f"127.0.0.1:{free_port()}"
    folder.mkdir(parents=True, exist_ok=True)
    async with gateway_harness(state=folder, retrieval_url=f"http://{address}") as gateway:
        await gateway.publish(*models)
        async with retrieval_program(folder, gateway.url, address, **settings) as pid:

            async def answers() -> bool:
                return bool((await gateway.get("/v1/documents")).status == 200)

            await until("the gateway reaches retrieval", answers)
            yield DocumentsSite(gateway, pid)


@contextlib.asynccontextmanager
async def retrieval_program(folder: Path, gateway_url: str, address: str, **settings: str) -> AsyncIterator[int]:
    """Run a retrieval program that listens at `address` (`host:port`), with its state in `folder`.

    `settings`: names without `ROUNDHOUSE_`. Yields the id of the process, which answers when the block begins and has
    ended when the block ends."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    variables = {"STATE": str(folder), "RETRIEVAL_LISTEN": address, "GATEWAY_URL": gateway_url, **settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "retrieval",
        env=own | {f"ROUNDHOUSE_{name}": value for name, value in variables.items()},
        cwd=Path(__file__).parents[2],
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:

        async def is_up() -> bool:
            assert process.returncode is None, f"retrieval ended with {process.returncode}"
            return await answers(f"http://{address}/metrics")

        await until("retrieval answers", is_up)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
