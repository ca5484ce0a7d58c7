"""A gateway in front of a whole retrieval program, which works over fakes of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from common.shared_token import SharedToken
from retrieval.api.app import TokenCheck
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.ports import free_port
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness

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
        app = TokenCheck(retrieval.retrieval.build_app(), SharedToken(own, "the token"))
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
