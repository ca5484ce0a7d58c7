"""The admin list of 200 models while streams run: how long it takes, and what the streams notice of it."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.report import Figure
from tests.support.roundhouse_stack import RoundhouseStack

MODELS = 200
STREAMS = 16
TOKENS = 150
TOKEN_DELAY_MS = 20
POLLS = 60
POLL_PAUSE_S = 0.03


def _declared() -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {"backend": "llama_server", "model_path": "missing.gguf", "replica_max": 4},
        {"backend": "llama_cpp", "model_path": "missing.gguf", "env": {"HF_TOKEN": "hf_secret"}},
        {"backend": "vllm_serve", "model_path": "missing"},
        {"backend": "exllamav3", "model_path": "missing"},
    )
    models = {f"model-{number}": kinds[number % len(kinds)] | {"enabled": False} for number in range(MODELS - 1)}
    text = " ".join(["word"] * TOKENS)
    return models | {
        "busy": {
            "backend": "stub",
            "stub_text": text,
            "stub_token_delay_ms": TOKEN_DELAY_MS,
            "target_inflight": STREAMS,
        }
    }


async def _stream(session: aiohttp.ClientSession, url: str) -> list[float]:
    """Milliseconds between the events of one stream."""
    body = {"model": "busy", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": TOKENS}
    gaps, last = [], None
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200
        async for _ in answer.content.iter_any():
            now = time.perf_counter()
            if last is not None:
                gaps.append((now - last) * 1e3)
            last = now
    return gaps


async def _poll(session: aiohttp.ClientSession, url: str) -> tuple[list[float], int]:
    """Milliseconds of each list, and its bytes."""
    times, size = [], 0
    for _ in range(POLLS):
        start = time.perf_counter()
        async with session.get(f"{url}/v1/admin/models") as answer:
            content = await answer.read()
        times.append((time.perf_counter() - start) * 1e3)
        assert answer.status == 200
        size = len(content)
        await asyncio.sleep(POLL_PAUSE_S)
    return times, size


async def _measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        stack = RoundhouseStack(Path(root), "process")
        stack.declare(_declared())
        async with stack.running("busy"):
            return await _measure_lists(stack)


async def _measure_lists(stack: RoundhouseStack) -> list[Figure]:
    socket = aiohttp.UnixConnector(str(stack.state / "controller.sock"))
    async with aiohttp.ClientSession() as session, aiohttp.ClientSession(connector=socket) as direct:
        idle, size = await _poll(session, stack.url)
        alone = await asyncio.gather(*(_stream(session, stack.url) for _ in range(STREAMS)))
        streaming = [asyncio.create_task(_stream(session, stack.url)) for _ in range(STREAMS)]
        loaded, _ = await _poll(session, stack.url)
        own, _ = await _poll(direct, "http://controller")
        watched = await asyncio.gather(*streaming)
    calm, seen = [*chain(*alone)], [*chain(*watched)]
    return [
        Figure(f"list of {MODELS} models through the gateway, nothing else, p50", statistics.median(idle), "ms"),
        Figure(f"the same under {STREAMS} streams, p50", statistics.median(loaded), "ms", "< 20"),
        Figure("the same under streams, p95", statistics.quantiles(loaded, n=20)[-1], "ms"),
        Figure("at the controller itself, p50", statistics.median(own), "ms"),
        Figure("bytes of the list", size / 1024, "KiB"),
        Figure("gap between a stream's events without lists, p50", statistics.median(calm), "ms"),
        Figure("the same with lists", statistics.median(seen), "ms"),
        Figure("gap p99 with lists over without", _p99(seen) / _p99(calm), "ratio", "about 1"),
    ]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[-1]


def run() -> list[Figure]:
    return asyncio.run(_measure())
