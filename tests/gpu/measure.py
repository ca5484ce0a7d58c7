"""Loads models of several shapes and prints what was predicted beside what they take; then swaps two models.

`python -m tests.gpu.measure [--cpu]`; tests/gpu/run brings what it needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console
from rich.table import Table

from tests.support.admin import AdminApi
from tests.support.gguf_files import write_llama
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until
from worker.clockwork import make_model

SMALL: Final[dict[str, Any]] = {"layers": 4, "width": 512, "heads": 8, "kv_heads": 2, "vocabulary": 32_000}
LARGE: Final[dict[str, Any]] = SMALL | {"layers": 16, "width": 2048, "heads": 16, "kv_heads": 8, "inner": 8192}
"""1.9 GiB of weights."""
SHAPES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "small": (SMALL, {"llama_server_n_ctx": 4096}),
    "small-long-q8": (
        SMALL,
        {"llama_server_n_ctx": 32_768, "llama_server_cache_type_k": "q8_0", "llama_server_cache_type_v": "q8_0"},
    ),
    "large": (LARGE, {"llama_server_n_ctx": 8192}),
    "large-long": (LARGE, {"llama_server_n_ctx": 32_768}),
}
SWAPS = 10
SETTLES_S = 15.0


def main() -> int:
    """Measure and print. 1: something failed."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without a GPU, on main memory")
    parser.add_argument("--small", action="store_true", help="leave out the large models")
    given = parser.parse_args()
    shapes = {name: shape for name, shape in SHAPES.items() if not (given.small and shape[0] is LARGE)}
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        return asyncio.run(_run(Path(root), shapes, on_gpu=not given.cpu))


async def _run(root: Path, shapes: Mapping[str, tuple[dict[str, Any], dict[str, Any]]], *, on_gpu: bool) -> int:
    device: dict[str, Any] = {"gpus": 1} if on_gpu else {"llama_server_threads": 1}
    stack = RoundhouseStack(root / "stack", "process", {"ROUNDHOUSE_ENGINES_MEMORY_MIB": "100000"})
    models: dict[str, Any] = {}
    for name, (shape, fields) in shapes.items():
        path = stack.models / f"{name}.gguf"
        write_llama(path, **shape)
        models[name] = device | fields | {"model_path": path.name, "enabled": False}
    make_model(stack.models / "clockwork.gguf")
    stack.declare(models)
    await stack.open()
    try:
        async with AdminApi(stack.url) as admin:
            gpus = (await admin.ask("GET", "gpu-memory")).body
            if on_gpu and not gpus["gpus"]:
                print(f"no GPU to be seen: {gpus['error']}", file=sys.stderr)
                return 1
            _show_memory([await _load(admin, stack, name) for name in models], gpus["gpus"])
            total = gpus["gpus"][0]["total_mib"] if on_gpu else 100_000
            _show_swaps(await _swap(stack, device, total, on_gpu=on_gpu))
    finally:
        await stack.close()
    return 0


async def _load(admin: AdminApi, stack: RoundhouseStack, name: str) -> tuple[str, int, int, float]:
    """Name, MiB predicted, MiB observed, seconds of the load."""
    before = (await admin.ask("GET", f"models/{name}")).body
    assert before["vram_estimate_source"] == "predicted", before
    began = time.monotonic()
    assert (await admin.ask("POST", f"models/{name}/load")).status in (200, 202)
    await stack.loaded(name)
    took = time.monotonic() - began

    async def observed() -> int | None:
        row = (await admin.ask("GET", f"models/{name}")).body
        return int(row["vram_estimate_mib"]) if row["vram_estimate_source"] == "observed_load_delta" else None

    seen = await until(f"what {name} takes is observed", observed, SETTLES_S)
    assert (await admin.ask("POST", f"models/{name}/unload")).status in (200, 202)
    await stack.model_where(name, lambda model: model.state == "unloaded", "unloaded")
    return name, int(before["vram_estimate_mib"]), int(seen), took


async def _swap(stack: RoundhouseStack, device: Mapping[str, Any], total: int, *, on_gpu: bool) -> list[float]:
    """Seconds to an answer of a model whose room another one has."""
    need = {"vram_mib" if on_gpu else "memory_mib": int(total * 0.6), "min_residency_s": 0}
    one = {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096, "enabled": False, "autoload": True, **need}
    stack.declare({name: one | dict(device) for name in ("one", "two")})
    times = []
    async with aiohttp.ClientSession() as session:
        for number in range(SWAPS):
            body = {"model": ("one", "two")[number % 2], "messages": [{"role": "user", "content": "Hi"}]}

            async def answered(body: Mapping[str, Any] = body) -> bool:
                async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
                    return "choices" in await answer.json()

            began = time.monotonic()
            await until("an answer", answered)
            times.append(time.monotonic() - began)
    return times


def _show_memory(rows: list[tuple[str, int, int, float]], gpus: list[dict[str, Any]]) -> None:
    title = gpus[0]["name"] if gpus else f"main memory, {os.cpu_count()} cores"
    table = Table(title=title, title_justify="left")
    for column in ("model", "predicted, MiB", "observed, MiB", "predicted / observed", "load, s"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, predicted, observed, took in rows:
        table.add_row(name, f"{predicted:,}", f"{observed:,}", f"{predicted / observed:.2f}", f"{took:.2f}")
    Console(width=100).print(table)


def _show_swaps(times: list[float]) -> None:
    table = Table(title="two models, room for one", title_justify="left")
    for column in ("swaps", "median, s", "longest, s"):
        table.add_column(column, justify="right")
    swaps = times[1:]  # the first is a load without one
    table.add_row(str(len(swaps)), f"{statistics.median(swaps):.2f}", f"{max(swaps):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
