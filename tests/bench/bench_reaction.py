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
from tests.support.house import House, replica_names
from tests.support.sites import DockerSite, ProcessSite, Site
from tests.support.wait import until

REPEATS = 9
_START = re.compile(r"^(\S+ \S+) INFO +controller\.operations: start (\S+)/0:", re.MULTILINE)


def _starts(house: House, model: str) -> list[float]:
    """Unix times at which a model's starts were issued, from the controller's log."""
    # The log is in local time and so is the clock it is compared with.
    return [
        datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007
        for stamp, name in _START.findall(house.log("controller"))
        if name == model
    ]


async def _issued_after(house: House, model: str, known: int, began: float) -> float:
    await until(f"a start of {model}", lambda: len(_starts(house, model)) > known)
    # The log's stamps have millisecond resolution, rounded down.
    return max(0.0, (_starts(house, model)[known] - began) * 1e3)


async def _saved_to_started(house: House) -> list[float]:
    times = []
    declared: dict[str, dict[str, object]] = {}
    for number in range(REPEATS):
        name = f"model-{number}"
        declared[name] = {"backend": "stub"}
        began = time.time()
        house.declare(declared)
        times.append(await _issued_after(house, name, 0, began))
        await house.loaded(name)
    house.declare({"last": {"backend": "stub"}})
    await house.loaded("last")
    return times


async def _killed_to_started(house: House, site: Site) -> list[float]:
    times = []
    for _ in range(REPEATS):
        models = await house.loaded("last")
        [replica] = replica_names(models["last"])
        known = len(_starts(house, "last"))
        began = time.time()
        site.kill(house, replica)
        times.append(await _issued_after(house, "last", known, began))
        await house.loaded("last")
        # A new controller counts failures anew: this measures the first restart, not the backoff.
        house.kill("controller", signal.SIGTERM)
        house.start("controller")
        await until("the controller is back", lambda: _answers(house))
    return times


async def _answers(house: House) -> bool:
    return (await house.model("last")) is not None


async def _measure(site: Site) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        Path(root).chmod(0o755)
        house = House(Path(root), site.runtime, site.env())
        house.declare({})
        await house.open()
        try:
            saved, killed = await _saved_to_started(house), await _killed_to_started(house, site)
        finally:
            await house.close()
    return [
        Figure(f"{site.runtime}: file saved to start issued, median", statistics.median(saved), "ms", aim="< 200 ms"),
        Figure(f"{site.runtime}: file saved to start issued, worst", max(saved), "ms"),
        Figure(f"{site.runtime}: engine killed to restart issued, median", statistics.median(killed), "ms", "< 500 ms"),
        Figure(f"{site.runtime}: engine killed to restart issued, worst", max(killed), "ms"),
    ]


def run() -> list[Figure]:
    """Medians over a few repetitions, in ms; containers where a Docker Engine answers."""
    os.environ.setdefault("TZ", "UTC")
    figures = asyncio.run(_measure(ProcessSite()))
    if engine_answers()[0]:
        instance = f"t{secrets.token_hex(4)}"
        site = DockerSite(instance, ensure_images(), f"rhtest_{instance}")
        try:
            figures += asyncio.run(_measure(site))
        finally:
            site.close()
    return figures
