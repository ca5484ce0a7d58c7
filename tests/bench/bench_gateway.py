"""The gateway against nginx and against no proxy, on the same fake engine, in one run.

    python -m tests.bench.bench_gateway [--json] [--rounds 5]

Every round measures every target, so that a noisy machine is noisy for all, and medians are shown. Engine, proxy and
load share the machine's cores: read the ratios, and the CPU time, rather than the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from gateway.__main__ import listen
from tests.bench.load import connect, events_per_second, request_bytes, requests_per_second, sequential_p50_ms
from tests.bench.report import Figure, show
from tests.fakes.fake_controller import FakeController, route

STREAMS, EVENTS = 16, 200
CONNECTIONS = 32
NGINX_CONF = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 64; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""


NO_PROXY, NGINX, GATEWAY = "no proxy", "nginx, 1 worker", "gateway"
AIMS = {GATEWAY: "> 4,600: raw ASGI + aiohttp"}


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers chat completions on a port of this machine."""

    name: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One target, one round."""

    sequential_p50_ms: float
    requests_per_s: float
    events_per_s: float
    cpu_us: float
    """CPU of the target's process per request, at `CONNECTIONS` connections."""


@contextlib.asynccontextmanager
async def process(*command: str, env: dict[str, str] | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process for as long as the context."""
    started = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.terminate()
        await started.wait()


def free_port() -> int:
    """A port that was free a moment ago."""
    with listen("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        return port


async def answers(port: int) -> None:
    """Wait until a request to `port` is answered."""
    async with asyncio.timeout(20):
        while True:
            try:
                (connection,) = await connect(port, 1)
                await connection.ask(request_bytes(port))
            except (OSError, RuntimeError):
                await asyncio.sleep(0.05)
            else:
                connection.transport.close()
                return


@contextlib.asynccontextmanager
async def targets() -> AsyncIterator[list[Target]]:
    """Everything there is to measure, all of it running."""
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(process(sys.executable, "-m", "tests.fakes.mock_engine"))
        assert engine.stdout is not None
        direct = Target(NO_PROXY, int(await engine.stdout.readline()), engine.pid)
        found = [direct]
        nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        if nginx is None:
            print("nginx is not installed; measuring without it", file=sys.stderr)
        else:
            found.append(await start_nginx(stack, nginx, direct.port))
        found.append(await start_gateway(stack, direct.port))
        for target in found:
            await answers(target.port)
        yield found


async def start_nginx(stack: contextlib.AsyncExitStack, nginx: str, engine_port: int) -> Target:
    """nginx in front of the engine."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    port = free_port()
    config = Path(folder) / "nginx.conf"
    config.write_text(NGINX_CONF.format(folder=folder, engine=engine_port, port=port))
    started = await stack.enter_async_context(process(nginx, "-c", str(config), "-p", folder))
    return Target(NGINX, port, started.pid)


async def start_gateway(stack: contextlib.AsyncExitStack, engine_port: int) -> Target:
    """The gateway in front of the engine, told so by a fake controller in this process."""
    controller = FakeController()
    await controller.start()
    stack.push_async_callback(controller.stop)
    port = free_port()
    env = {
        "ROUNDHOUSE_PORT": str(port),
        "ROUNDHOUSE_CONTROLLER_URL": controller.url,
        "ROUNDHOUSE_LOG_LEVEL": "error",
    }
    started = await stack.enter_async_context(process(sys.executable, "-m", "gateway", env=env))
    await controller.publish(route("bench", [f"http://127.0.0.1:{engine_port}"]))
    return Target(GATEWAY, port, started.pid)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, its children left out."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(target: Target, seconds: float) -> Measured:
    """One round of one target."""
    p50 = await sequential_p50_ms(target.port, 500)
    before = cpu_s(target.pid)
    rate, answered = await requests_per_second(target.port, CONNECTIONS, seconds)
    cpu = cpu_s(target.pid) - before
    return Measured(p50, rate, await events_per_second(target.port, STREAMS, EVENTS), cpu / answered * 1e6)


async def measure_all(rounds: int, seconds: float) -> dict[str, Measured]:
    """Medians by target."""
    async with targets() as found:
        seen: dict[str, list[Measured]] = {target.name: [] for target in found}
        for _ in range(rounds):
            for target in found:
                seen[target.name].append(await measure(target, seconds))
    return {name: median(rows) for name, rows in seen.items()}


def median(rows: list[Measured]) -> Measured:
    """Field by field."""
    columns = [asdict(row) for row in rows]
    return Measured(**{name: statistics.median(column[name] for column in columns) for name in columns[0]})


def figures(medians: dict[str, Measured]) -> list[Figure]:
    """The medians, and the gateway's ratios to the others."""
    shown = []
    for name, at in medians.items():
        shown += [
            Figure(f"{name}: one after the other, p50", at.sequential_p50_ms, "ms"),
            Figure(f"{name}: at {CONNECTIONS} connections", at.requests_per_s, "req/s", AIMS.get(name, "")),
            Figure(f"{name}: {STREAMS} streams x {EVENTS}", at.events_per_s, "events/s"),
        ]
    gateway = medians[GATEWAY]
    shown.append(Figure(f"{GATEWAY}: CPU per request", gateway.cpu_us, "us"))
    for name in (NO_PROXY, NGINX):
        if name in medians:
            other = medians[name]
            added = gateway.sequential_p50_ms - other.sequential_p50_ms
            shown += [
                Figure(f"{GATEWAY} over {name}: added p50", added, "ms"),
                Figure(f"{GATEWAY} over {name}: req/s", gateway.requests_per_s / other.requests_per_s, "x"),
                Figure(f"{GATEWAY} over {name}: events/s", gateway.events_per_s / other.events_per_s, "x"),
            ]
    return shown


def run(rounds: int = 5, seconds: float = 2.0) -> list[Figure]:
    """Measure; `seconds` is the length of each requests-per-second measurement."""
    medians: dict[str, Measured] = uvloop.run(measure_all(rounds, seconds))
    return figures(medians)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each requests-per-second measurement")
    options = parser.parse_args()
    show("gateway", run(options.rounds, options.seconds), as_json=options.json)


if __name__ == "__main__":
    main()
