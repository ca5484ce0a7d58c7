"""`python -m retrieval` as a process of its own, behind a gateway on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from controller.schema.routing import ModelRoute
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.http_client import answers
from tests.support.ports import free_port
from tests.support.wait import until


@dataclass(frozen=True, slots=True)
class DocumentsSite:
    """A gateway that knows a retrieval program."""

    gateway: GatewayHarness

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
        async with retrieval_program(folder, gateway.url, address, **settings):

            async def answers() -> bool:
                return bool((await gateway.get("/v1/documents")).status == 200)

            await until("the gateway reaches retrieval", answers)
            yield DocumentsSite(gateway)


@contextlib.asynccontextmanager
async def retrieval_program(folder: Path, gateway_url: str, address: str, **settings: str) -> AsyncIterator[None]:
    """Run a retrieval program that listens at `address` (`host:port`), with its state in `folder`.

    `settings`: names without `ROUNDHOUSE_`. It answers when the block begins, and has ended when the block ends."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    said = {"STATE": str(folder), "RETRIEVAL_LISTEN": address, "GATEWAY_URL": gateway_url, **settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "retrieval",
        env=own | {f"ROUNDHOUSE_{name}": value for name, value in said.items()},
        cwd=Path(__file__).parents[2],
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:

        async def is_up() -> bool:
            assert process.returncode is None, f"retrieval ended with {process.returncode}"
            return await answers(f"http://{address}/metrics")

        await until("retrieval answers", is_up)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
