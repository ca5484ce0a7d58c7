"""What tools at work cost other clients of the same gateway: the gaps between the chunks of their streams, and their
requests to a model of four slots, all of whose loops wait for tools.

Streams are paced as an engine's are. Beside them 20 clients have a model call tools by `/v1/responses`, as fast as it
makes calls: a tool that answers 100 MiB, a server that never answers, a search of files, and pages. Three ways are
measured in each round: without tools, with tools at work in the same gateway, and, as a control, with the same tools
at work in another gateway on this machine, for two cores are shared by all of them. Ratios are medians of the rounds'.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import uvloop

from contract.tools import McpServerRoute, ToolRoute
from tests.bench.load import CHAT, Connection, allow_many_files, close, connect, post_bytes, request_bytes
from tests.bench.report import Figure, median_ratio, percentile
from tests.bench.targets import start_controller, start_gateway, start_module
from tests.bench.tool_loops import MODEL
from tests.bench.tool_sides import Sides
from tests.fakes.fake_controller import route

STREAMS: Final = 16
PACE_S: Final = 0.02
SECONDS: Final = 6.0
LOOPS: Final = 20
SLOTS: Final = 4
REQUESTS: Final = 400
"""Of others, to the model of `SLOTS` slots, in each round."""
FILES, FILE_BYTES = 200, 200_000
"""Of the folder that is searched: 40 MB."""
HANG_S: Final = 2.0
"""Seconds after which a call of the server `mute`, which never answers, is ended."""
PATIENCE_S: Final = 300.0
"""The same of `patient`, which is the same server by another name."""
TOOLS: Final = ("flood/dump", "mute/hang", "roundhouse/search_files", "roundhouse/fetch_url")
WITHOUT, SAME, OTHER = "without tools", "tools beside", "tools in another gateway"
GAP_AIM: Final = "<= 1.1"


class TimedStream(Connection):
    """A connection that notes when something came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        super().data_received(data)


@dataclass(frozen=True, slots=True)
class Gateways:
    """The ports of two alike, in front of the same engines and tools: who streams asks `measured`."""

    measured: int
    other: int


@contextlib.asynccontextmanager
async def start_gateways() -> AsyncIterator[Gateways]:
    """Start engines, tools, a controller and two gateways, which serve and are connected to the MCP servers."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench")))
        controller = await start_controller(stack)
        _, engine_port = await start_module(stack, "tests.bench.engine")
        _, described = await start_module(stack, "tests.bench.tool_sides")
        sides: Sides = json.loads(described)
        ports = []
        for name in ("measured", "other"):
            (folder / name).mkdir()
            ports.append((await start_gateway(stack, controller, folder / name)).port)
        await controller.publish(
            route("bench", [f"http://127.0.0.1:{int(engine_port)}"], target_inflight=4096, apis=(CHAT,)),
            route(MODEL, [sides["engine"]], target_inflight=SLOTS, queue_limit=4096, apis=(CHAT,)),
            tools=_declare_tools(sides, folder / "files"),
            mcp_servers=(
                McpServerRoute(name="flood", url=sides["flood"]),
                McpServerRoute(name="mute", url=sides["mute"], timeout_s=HANG_S),
                McpServerRoute(name="patient", url=sides["mute"], timeout_s=PATIENCE_S),
            ),
        )
        for port in ports:
            await _wait_until_connected(port)
        yield Gateways(*ports)


def _declare_tools(sides: Sides, folder: Path) -> tuple[ToolRoute, ...]:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.txt").write_text(f"The quick brown fox, {number}.\n" * (FILE_BYTES // 26))
    host = sides["page"].removeprefix("http://").rstrip("/")
    return (ToolRoute(name="fetch_url", hosts=(host,)), ToolRoute(name="search_files", folder=str(folder)))


async def _read(port: int, path: str) -> str:
    def get() -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    return await asyncio.to_thread(get)


async def _wait_until_connected(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                states = [each["state"] for each in json.loads(await _read(port, "/tools/servers"))]
                if states == ["connected"] * 3:
                    return
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def tools_at_work(port: int, tools: Sequence[str], calls: Counter[str]) -> AsyncIterator[None]:
    """Have `LOOPS` clients call these tools through a gateway while the block runs; their calls are added to
    `calls`."""
    command = [sys.executable, "-m", "tests.bench.tool_loops", str(port), str(LOOPS), ",".join(tools)]
    pipes = asyncio.subprocess.PIPE
    clients = await asyncio.create_subprocess_exec(*command, stdin=pipes, stdout=pipes)
    assert clients.stdin is not None
    assert clients.stdout is not None
    try:
        if await clients.stdout.readline() != b"begun\n":
            raise RuntimeError("the clients of tools failed")
        yield
        clients.stdin.close()
        calls.update(json.loads(await clients.stdout.read()))
    finally:
        if clients.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                clients.kill()
            await clients.wait()


async def measure_gaps(port: int, seconds: float) -> list[float]:
    """Return the milliseconds between the chunks of `STREAMS` streams."""
    loop = asyncio.get_running_loop()
    opened = [(await loop.create_connection(TimedStream, "127.0.0.1", port))[1] for _ in range(STREAMS)]
    request = request_bytes(port, "none", stream=True, max_tokens=int(seconds / PACE_S), user=f"pace:{PACE_S}")
    await asyncio.gather(*(each.ask(request) for each in opened))
    close(opened)
    return [
        (after - before) * 1000
        for each in opened
        for before, after in zip(each.times[1:-1], each.times[2:], strict=True)
    ]


async def measure_requests(port: int) -> list[float]:
    """Return the milliseconds of `REQUESTS` requests to the model of `SLOTS` slots, `SLOTS` at a time."""
    request = post_bytes(port, "none", CHAT, model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    opened = await connect(port, SLOTS)
    times = []

    async def ask(connection: Connection) -> None:
        for _ in range(REQUESTS // SLOTS):
            began = time.perf_counter()
            await connection.ask(request)
            times.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(ask(each) for each in opened))
    close(opened)
    return times


async def _count_waits(port: int) -> float:
    """How many requests have waited for a slot of `MODEL`."""
    pattern = rf'^roundhouse_gateway_queue_wait_seconds_count{{model="{MODEL}"}} (.*)$'
    found = re.search(pattern, await _read(port, "/metrics"), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def _wait_until_in_tools(port: int) -> None:
    """Wait until no loop holds a slot or waits for one: all of them wait for their tool."""
    async with asyncio.timeout(60):
        while True:
            text = await _read(port, "/metrics")
            if all(f'roundhouse_gateway_{name}{{model="{MODEL}"}} 0.0' in text for name in ("inflight", "queued")):
                return
            await asyncio.sleep(0.05)


async def _measure_slots(gateways: Gateways, rounds: int) -> list[Figure]:
    port = gateways.measured
    alone, beside, waits = [], [], 0.0
    for _ in range(rounds):
        alone.append(await measure_requests(port))
        async with tools_at_work(port, ["patient/hang"], Counter()):
            await _wait_until_in_tools(port)
            before = await _count_waits(port)
            beside.append(await measure_requests(port))
            waits += await _count_waits(port) - before
    what = f"requests to a model of {SLOTS} slots, {SLOTS} at a time"
    shown = []
    for percent in (50, 99):
        pair = [[percentile(each, percent / 100) for each in way] for way in (alone, beside)]
        shown += [
            Figure(f"{what}, p{percent}", statistics.median(values), "ms", of=name)
            for name, values in zip((WITHOUT, SAME), pair, strict=True)
        ]
    ratio = median_ratio(*([percentile(each, 0.99) for each in way] for way in (beside, alone)))
    shown.append(Figure(f"p99 of those, beside {LOOPS} loops that wait for a tool over without", ratio, "x", GAP_AIM))
    slowest = max(max(each) for each in beside)
    shown.append(Figure("the slowest of those beside loops that wait", slowest, "ms"))
    shown.append(Figure("of those beside loops, requests that waited for a slot", waits, "", "0"))
    return shown


async def _measure_all(rounds: int, seconds: float, each: bool) -> list[Figure]:
    kinds = [TOOLS, *((name,) for name in TOOLS)] if each else [TOOLS]
    shown = []
    async with start_gateways() as gateways:
        for tools in kinds:
            shown += await _measure_streams(gateways, tools, rounds, seconds)
        shown += await _measure_slots(gateways, rounds)
    return shown


async def _measure_streams(gateways: Gateways, tools: Sequence[str], rounds: int, seconds: float) -> list[Figure]:
    ports = {WITHOUT: None, SAME: gateways.measured, OTHER: gateways.other}
    gaps: dict[str, list[list[float]]] = {way: [] for way in ports}
    calls: Counter[str] = Counter()
    for number in range(rounds):
        shift = number % len(ports)
        for way in (*list(ports)[shift:], *list(ports)[:shift]):
            port = ports[way]
            async with AsyncExitStack() as stack:
                if port is not None:
                    await stack.enter_async_context(tools_at_work(port, tools, calls))
                gaps[way].append(await measure_gaps(gateways.measured, seconds))
    what = "all tools" if len(tools) > 1 else tools[0]
    print(f"{what}: calls in {2 * rounds * seconds:g} s: {dict(calls)}", file=sys.stderr)
    shown = []
    for figure, pick in (("p50", 50), ("p99", 99), ("p99.9", 99.9)):
        shown += [
            Figure(
                f"{what}: gap of {STREAMS} streams, {figure}",
                statistics.median(percentile(values, pick / 100) for values in found),
                "ms",
                of=way,
            )
            for way, found in gaps.items()
        ]
    for way, base, aim in ((SAME, WITHOUT, GAP_AIM), (OTHER, WITHOUT, ""), (SAME, OTHER, "")):
        ratio = median_ratio(*([percentile(each, 0.99) for each in gaps[name]] for name in (way, base)))
        shown.append(Figure(f"{what}: p99 of gaps, {way} over {base}", ratio, "x", aim))
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--rounds N`, `--seconds N` of each way in a round, `--each`: each tool alone, too."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=tools", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--each", action="store_true")
    options = parser.parse_args(arguments)
    allow_many_files()
    return uvloop.run(_measure_all(options.rounds, options.seconds, options.each))
