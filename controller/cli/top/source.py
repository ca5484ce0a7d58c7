"""Where `roundhouse top` looks: the admin API, and the gateway's metrics if they can be had."""

from __future__ import annotations

import asyncio
from typing import Self

import aiohttp

from controller.cli.admin_client import AdminClient
from controller.cli.top.token_rates import TokenSample, token_rates, tokens_of
from controller.cli.top.view import TopView

METRICS_TIMEOUT_S = 2.0


class TopSource:
    """Looks again and again, and keeps the counters of the last time."""

    def __init__(self, client: AdminClient, gateway: str) -> None:
        """`gateway` is its URL, without a path."""
        self._client = client
        self._metrics_url = f"{gateway.rstrip('/')}/metrics"
        self._last: TokenSample | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def read_first_counters(self) -> bool:
        """Take the first counters; whether there are any, so that a second look will know rates."""
        self._last = await self._sample()
        return self._last is not None

    async def read_view(self) -> TopView:
        """Everything now; rates since the last time. Raises as AdminClient."""
        models, memory, sample = await asyncio.gather(
            self._client.list_models(), self._client.get_gpu_memory(), self._sample()
        )
        before, self._last = self._last, sample
        return TopView(models, memory, token_rates(before, sample))

    async def _sample(self) -> TokenSample | None:
        try:
            async with self._session.get(self._metrics_url) as response:
                text = await response.text()
                if response.status != 200:
                    return None
                return TokenSample(asyncio.get_running_loop().time(), tokens_of(text))
        except (aiohttp.ClientError, OSError, ValueError):
            return None
