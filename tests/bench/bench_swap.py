"""Two models, room for one: Roundhouse beside llama-server's own router mode, the same engine and the same requests."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.bench.report import Figure
from tests.support.http_client import answers
from tests.support.installed_engines import program
from tests.support.ports import free_port
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until
from worker.clockwork import make_model

REQUESTS = 100
CLIENTS = 8
MODELS = ("one", "two")
SWAPS = 7
SLOW_SWAPS, SLOW_S = 3, 3.0
CONTEXT = 8192
LLAMA: Final = {"model_path": "clockwork.gguf", "llama_server_n_ctx": CONTEXT, "llama_server_threads": 1}
TIMEOUT = aiohttp.ClientTimeout(total=120)


def run() -> Iterable[Figure]:
    """Mixed requests through both, and the first token of a model that has to be swapped in."""
    return asyncio.run(_run())


async def _run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        folder = Path(root)
        make_model(folder / "clockwork.gguf")
        figures = []
        async with _roundhouse(folder / "stack") as (url, loads):
            figures += await _mixed("Roundhouse", url, loads)
        async with _router(folder) as (url, loads):
            figures += await _mixed("router mode", url, loads)
        async with _roundhouse(folder / "swaps") as (url, _):
            swapped = await _swaps(url)
        async with _router(folder) as (url, _):
            figures.append(Figure("first token after a swap", await _swaps(url) * 1e3, "ms", of="router mode"))
        figures.append(Figure("first token after a swap", swapped * 1e3, "ms", of="Roundhouse"))
        own = statistics.median([await _own_start(folder) for _ in range(SWAPS)])
        figures.append(Figure("engine's own start, to its first token", own * 1e3, "ms"))
        figures.append(Figure("added to that by a swap of Roundhouse", (swapped - own) * 1e3, "ms"))
        async with _roundhouse(folder / "slow", {"backend": "stub", "stub_load_s": SLOW_S}) as (url, _):
            slow = await _swaps(url, SLOW_SWAPS, SLOW_S + 1.5)
        own_slow = statistics.median([await _own_slow_start(folder) for _ in range(SLOW_SWAPS)])
        words = f"swap / own start, of an engine that loads for {SLOW_S:g} s"
        figures.append(Figure(words, slow / own_slow, "x", "<= 1.15"))
        return figures


@asynccontextmanager
async def _roundhouse(root: Path, engine: Mapping[str, Any] = LLAMA) -> AsyncIterator[tuple[str, Path]]:
    app = str(program().parent)
    stack = RoundhouseStack(
        root, "process", {"ROUNDHOUSE_ENGINES_MEMORY_MIB": "1000", "PATH": f"{app}:{os.environ['PATH']}"}
    )
    make_model(stack.models / "clockwork.gguf")
    common = {"memory_mib": 600, "enabled": False, "autoload": True, "queue_limit": REQUESTS}
    stack.declare({name: {**engine, **common} for name in MODELS})
    async with stack.running():
        yield stack.url, stack.root / "controller.log"


@asynccontextmanager
async def _router(folder: Path) -> AsyncIterator[tuple[str, Path]]:
    preset, log, port = folder / "models.ini", folder / "router.log", free_port()
    section = f"model = {folder / 'clockwork.gguf'}\nctx-size = {CONTEXT}\nthreads = 1\n"
    preset.write_text("".join(f"[{name}]\n{section}\n" for name in MODELS))
    flags = ("--models-preset", str(preset), "--models-max", "1", "--host", "127.0.0.1", "--port", str(port))
    process = _spawned(log, str(program()), *flags)
    url = f"http://127.0.0.1:{port}"
    try:
        await until("the router is up", lambda: answers(f"{url}/health"))
        yield url, log
    finally:
        _end(process)


async def _mixed(of: str, url: str, log: Path) -> list[Figure]:
    """The same requests in the same order, by clients that each ask for the next one when they are answered."""
    chance = random.Random(7)
    left = iter([chance.choice(MODELS) for _ in range(REQUESTS)])
    failed, took = 0, []
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:

        async def client() -> None:
            nonlocal failed
            for model in left:
                began = time.monotonic()
                failed += not await _asked(session, url, model)
                took.append(time.monotonic() - began)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        whole = time.monotonic() - began
    return [
        Figure("failed requests", failed, "", of=of),
        Figure("loads", _loads(log.read_text()), "", of=of),
        Figure("all requests", whole, "s", of=of),
        Figure("request, median", statistics.median(took) * 1e3, "ms", of=of),
        Figure("request, longest", max(took) * 1e3, "ms", of=of),
    ]


def _loads(log: str) -> int:
    return sum("operations: start " in line or "spawning server instance" in line for line in log.splitlines())


async def _asked(session: aiohttp.ClientSession, url: str, model: str) -> bool:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        return answer.status == 200 and "choices" in await answer.json()


async def _first_token(session: aiohttp.ClientSession, url: str, model: str) -> float:
    """Seconds until the first event that holds text."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
    began = time.monotonic()
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {") and _text(line[6:]):
                took = time.monotonic() - began
                await answer.read()
                return took
    raise AssertionError(f"{url} answered nothing for {model}")


def _text(event: bytes) -> str:
    choices = json.loads(event).get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


async def _swaps(url: str, count: int = SWAPS, idle_s: float = 1.5) -> float:
    """Median seconds to the first token of a model while the other one is loaded, and idle for longer than it loads."""
    took = []
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        await _first_token(session, url, MODELS[0])
        for number in range(count):
            await asyncio.sleep(idle_s)
            took.append(await _first_token(session, url, MODELS[(number + 1) % 2]))
    return statistics.median(took)


async def _own_start(folder: Path) -> float:
    port = free_port()
    flags = ("-m", str(folder / "clockwork.gguf"), "-c", str(CONTEXT), "-t", "1", "--parallel", "4", "--kv-unified")
    return await _started(folder, port, str(program()), *flags, "--host", "127.0.0.1", "--port", str(port))


async def _own_slow_start(folder: Path) -> float:
    port = free_port()
    listen = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "m")
    return await _started(folder, port, sys.executable, "-m", "worker", "stub", *listen, "--load-s", str(SLOW_S))


async def _started(folder: Path, port: int, *command: str) -> float:
    """Seconds from an engine's start to its first token."""
    began = time.monotonic()
    process = _spawned(folder / "own.log", *command)
    url = f"http://127.0.0.1:{port}"
    try:
        while not await answers(f"{url}/health"):  # noqa: ASYNC110 - another program cannot set an event
            await asyncio.sleep(0.005)
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            await _first_token(session, url, "m")
        return time.monotonic() - began
    finally:
        _end(process)


def _spawned(log: Path, *command: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(30)
