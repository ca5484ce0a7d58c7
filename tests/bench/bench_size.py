"""Resident memory of controller and gateway at idle, with one model served."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import psutil

from tests.bench.report import Figure
from tests.support.house import House


async def _run(runtime: str) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        house = House(Path(root), runtime)
        house.declare({"one": {"backend": "stub"}})
        await house.open()
        try:
            await house.loaded("one")
            programs = {name: psutil.Process(house.pid(name)) for name in ("controller", "gateway")}
            mib = {name: process.memory_info().rss / 2**20 for name, process in programs.items()}
        finally:
            await house.close()
    return [
        *(Figure(f"{name}, resident at idle", value, "MiB") for name, value in mib.items()),
        Figure("together, resident at idle", sum(mib.values()), "MiB", aim="< 200 MB (190 MiB)"),
    ]


def run() -> list[Figure]:
    """MiB resident, process runtime."""
    return asyncio.run(_run("process"))
