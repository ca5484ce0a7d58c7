"""Where the gateway's time goes: it samples itself under load, and shares become microseconds of CPU."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.bench.load import events_per_second, request_bytes, requests_per_second
from tests.bench.report import Figure
from tests.bench.targets import GATEWAY, Target, targets

SECONDS = 10.0
CONNECTIONS, STREAMS, PACE_S = 32, 512, 0.05
SHOWN = 20
"""Lines of each table."""


async def profile() -> list[Figure]:
    """Microseconds per request at 32 connections, and per chunk of 512 streams; by function, then by line."""
    secret = f"sk-{secrets.token_urlsafe(32)}"
    with tempfile.TemporaryDirectory(prefix="rh-bench") as folder:
        out = Path(folder) / "samples.json"
        async with targets(secret, (GATEWAY,), samples=out) as found:
            gateway = found[-1]
            blocking = request_bytes(gateway.port, secret)
            events = round(SECONDS / PACE_S)
            stream = request_bytes(gateway.port, secret, stream=True, max_tokens=events, user=f"pace:{PACE_S}")

            async def requests() -> int:
                return (await requests_per_second(gateway.port, blocking, CONNECTIONS, SECONDS))[1]

            async def chunks() -> int:
                await events_per_second(gateway.port, stream, STREAMS, events)
                return STREAMS * events

            return [
                *await _sampled(gateway, out, "request", requests),
                *await _sampled(gateway, out, "chunk", chunks),
            ]


async def _sampled(target: Target, out: Path, of: str, load: Callable[[], Awaitable[int]]) -> list[Figure]:
    """`load` gives how many it did of what is counted."""
    await _samples(target, out)  # what was before does not count
    before = target.cpu_s()
    count = await load()
    cpu_us = (target.cpu_s() - before) * 1e6 / count
    shown = [Figure(f"CPU per {of}", cpu_us, "us")]
    for by, noted in (await _samples(target, out)).items():
        total = sum(noted.values())
        for name, number in sorted(noted.items(), key=lambda item: -item[1])[:SHOWN]:
            shown.append(Figure(f"{of}: {name}", cpu_us * number / total, f"us, by {by}"))
    return shown


async def _samples(target: Target, out: Path) -> dict[str, dict[str, int]]:
    out.unlink(missing_ok=True)
    os.kill(target.pid, signal.SIGUSR1)
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(0.05)
            if out.exists():
                found: dict[str, dict[str, int]] = json.loads(out.read_text())
                return found
