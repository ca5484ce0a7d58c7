"""Resident memory of controller and gateway at idle, with one model served."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import psutil

from tests.bench.report import Figure
from tests.support.roundhouse_stack import RoundhouseStack


async def _run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        stack = RoundhouseStack(Path(root), "process")
        stack.declare({"one": {"backend": "stub"}})
        async with stack.running("one"):
            programs = {name: psutil.Process(stack.pid(name)) for name in ("controller", "gateway")}
            mib = {name: process.memory_info().rss / 2**20 for name, process in programs.items()}
    return [
        *(Figure(f"{name}, resident at idle", value, "MiB") for name, value in mib.items()),
        Figure("together, resident at idle", sum(mib.values()), "MiB", aim="< 200 MB (190 MiB)"),
    ]


def run() -> list[Figure]:
    """MiB resident, process runtime."""
    return asyncio.run(_run())
