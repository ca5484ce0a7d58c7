"""Which gateway `roundhouse rag` asks, and for which tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from controller.cli.settings import own_gateway_url, read_settings

if TYPE_CHECKING:
    from controller.cli.rag.client import RagClient

Result = TypeVar("Result")

Gateway: TypeAlias = Annotated[
    str | None,
    typer.Option("--gateway", metavar="URL", help="Address of the gateway; default: that of `roundhouse up`."),
]
Tenant: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Whose documents, while no keys are declared; with keys, ROUNDHOUSE_KEY decides.",
    ),
]


def ask_gateway(gateway: str | None, tenant: str | None, work: Callable[[RagClient], Awaitable[Result]]) -> Result:
    """Return what `work` returns, called with a client of the gateway. Blocks; no event loop may run in this thread.

    `gateway`: its address; None: that of `roundhouse up`, whose certificate is then not checked. `tenant`: whose
    documents, while the gateway has no keys; None: the tenant `roundhouse` (`USUAL_TENANT`). Raises what `work` raises,
    and CommandError where a setting is wrong.
    """
    from controller.cli.rag.client import RagClient

    async def run() -> Result:
        url = gateway or own_gateway_url(read_settings())
        async with RagClient(url, tenant, verifies=gateway is not None) as client:
            return await work(client)

    return asyncio.run(run())
