"""How soon the controller reacts: a file saved, and an engine killed, to the start being issued. Real processes."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path

from tests.bench.report import Figure
from tests.support.docker_engine import engine_answers
from tests.support.docker_images import ensure_images
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import DockerRuntimeFixture, ProcessRuntimeFixture, RuntimeFixture
from tests.support.wait import until

REPEATS = 9
_START = re.compile(r"^(\S+ \S+) INFO +controller\.operations: start (\S+)/0:", re.MULTILINE)


def _starts(stack: RoundhouseStack, model: str) -> list[float]:
    """Unix times at which a model's starts were issued, from the controller's log."""
    # The log is in local time and so is the clock it is compared with.
    return [
        datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007
        for stamp, name in _START.findall(stack.log("controller"))
        if name == model
    ]


async def _issued_after(stack: RoundhouseStack, model: str, known: int, began: float) -> float:
    await until(f"a start of {model}", lambda: len(_starts(stack, model)) > known)
    # The log's stamps have millisecond resolution, rounded down.
    return max(0.0, (_starts(stack, model)[known] - began) * 1e3)


async def _saved_to_started(stack: RoundhouseStack) -> list[float]:
    times = []
    declared: dict[str, dict[str, object]] = {}
    for number in range(REPEATS):
        name = f"model-{number}"
        declared[name] = {"backend": "stub"}
        began = time.time()
        stack.declare(declared)
        times.append(await _issued_after(stack, name, 0, began))
        await stack.loaded(name)
    stack.declare({"last": {"backend": "stub"}})
    await stack.loaded("last")
    return times


async def _killed_to_started(stack: RoundhouseStack, runtime_fixture: RuntimeFixture) -> list[float]:
    times = []
    for _ in range(REPEATS):
        models = await stack.loaded("last")
        [replica] = replica_names(models["last"])
        known = len(_starts(stack, "last"))
        began = time.time()
        runtime_fixture.kill(stack, replica)
        times.append(await _issued_after(stack, "last", known, began))
        await stack.loaded("last")
        # A new controller counts failures anew: this measures the first restart, not the backoff.
        stack.kill("controller", signal.SIGTERM)
        stack.start("controller")
        await until("the controller is back", lambda: _answers(stack))
    return times


async def _answers(stack: RoundhouseStack) -> bool:
    return (await stack.model("last")) is not None


async def _measure(runtime_fixture: RuntimeFixture) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        Path(root).chmod(0o755)
        stack = RoundhouseStack(Path(root), runtime_fixture.runtime, runtime_fixture.env())
        stack.declare({})
        async with stack.running():
            saved, killed = await _saved_to_started(stack), await _killed_to_started(stack, runtime_fixture)
    figures = []
    for what, times, aim in (
        ("file saved to start issued", saved, "< 200 ms"),
        ("engine killed to restart issued", killed, "< 500 ms"),
    ):
        name = f"{runtime_fixture.runtime}: {what}"
        figures += [
            Figure(f"{name}, median", statistics.median(times), "ms", aim),
            Figure(f"{name}, worst", max(times), "ms"),
        ]
    return figures


def run() -> list[Figure]:
    """Medians over a few repetitions, in ms; containers where a Docker Engine answers."""
    os.environ.setdefault("TZ", "UTC")
    figures = asyncio.run(_measure(ProcessRuntimeFixture()))
    if engine_answers()[0]:
        instance = f"t{secrets.token_hex(4)}"
        runtime_fixture = DockerRuntimeFixture(instance, ensure_images(), f"rhtest_{instance}")
        try:
            figures += asyncio.run(_measure(runtime_fixture))
        finally:
            runtime_fixture.close()
    return figures
