"""A gateway at rest: what there must be nothing left of."""

from __future__ import annotations

import re

from tests.support.http_client import HttpClient
from tests.support.wait import until


def shows_requests(metrics: str) -> bool:
    """Whether a gateway's metrics show a request that is inside or waits."""
    return re.search(r"^roundhouse_gateway_(inflight|queued)\{.*\} (?!0\.0$)", metrics, re.MULTILINE) is not None


async def nothing_left(gateway: HttpClient) -> None:
    """Wait until nothing is inside or waits, and no connection to an engine is in use, by /metrics and by /health."""

    async def look() -> bool:
        metrics = (await gateway.get("/metrics")).text
        health = (await gateway.get("/health")).body
        busy = 'roundhouse_gateway_engine_connections{state="busy"} 0.0' not in metrics
        return not (
            shows_requests(metrics)
            or busy
            or health["queue_depth"]
            or any(each["inflight"] for each in health["engines"])
        )

    await until("nothing is left", look)
