"""The gateway against nginx and against no proxy, on the same fake engine, in one run.

    python -m tests.bench.bench_gateway [--json] [--rounds 5]

Every round measures every target, so that a noisy machine is noisy for all; the table shows medians, and ratios to
no proxy. Engine, proxy and load share the machine's cores: read the ratios, not the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
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


@dataclass
class Figures:
    """One target, one round."""

    sequential_p50_ms: float
    requests_per_s: float
    events_per_s: float


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
async def targets() -> AsyncIterator[dict[str, int]]:
    """Name to port of everything there is to measure, all of it running."""
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(process(sys.executable, "-m", "tests.fakes.mock_engine"))
        assert engine.stdout is not None
        engine_port = int(await engine.stdout.readline())
        found = {"no proxy": engine_port}
        nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        if nginx is None:
            print("nginx is not installed; measuring without it", file=sys.stderr)
        else:
            found["nginx, 1 worker"] = await start_nginx(stack, nginx, engine_port)
        found["gateway"] = await start_gateway(stack, engine_port)
        for port in found.values():
            await answers(port)
        yield found


async def start_nginx(stack: contextlib.AsyncExitStack, nginx: str, engine_port: int) -> int:
    """nginx in front of the engine."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    port = free_port()
    config = Path(folder) / "nginx.conf"
    config.write_text(NGINX_CONF.format(folder=folder, engine=engine_port, port=port))
    await stack.enter_async_context(process(nginx, "-c", str(config), "-p", folder))
    return port


async def start_gateway(stack: contextlib.AsyncExitStack, engine_port: int) -> int:
    """The gateway in front of the engine, told so by a fake controller in this process."""
    controller = FakeController()
    await controller.start()
    stack.push_async_callback(controller.stop)
    port = free_port()
    env = {
        "ROUNDHOUSE_PORT": str(port),
        "ROUNDHOUSE_CONTROLLER_URL": controller.url,
        "ROUNDHOUSE_LOG_LEVEL": "warning",
    }
    await stack.enter_async_context(process(sys.executable, "-m", "gateway", env=env))
    await controller.publish(route("bench", [f"http://127.0.0.1:{engine_port}"]))
    return port


async def measure(port: int, seconds: float) -> Figures:
    """One round of one target."""
    return Figures(
        sequential_p50_ms=await sequential_p50_ms(port, 500),
        requests_per_s=await requests_per_second(port, CONNECTIONS, seconds),
        events_per_s=await events_per_second(port, STREAMS, EVENTS),
    )


async def run(rounds: int, seconds: float) -> dict[str, Figures]:
    """Medians by target."""
    async with targets() as ports:
        seen: dict[str, list[Figures]] = {name: [] for name in ports}
        for _ in range(rounds):
            for name, port in ports.items():
                seen[name].append(await measure(port, seconds))
    return {name: median(figures) for name, figures in seen.items()}


def median(figures: list[Figures]) -> Figures:
    """Field by field."""
    columns = [asdict(figure) for figure in figures]
    return Figures(**{name: statistics.median(column[name] for column in columns) for name in columns[0]})


def table(medians: dict[str, Figures]) -> str:
    """The figures, and in brackets the ratio to no proxy."""
    base = medians["no proxy"]
    lines = [f"{'':18}{'sequential p50':>22}{f'req/s at {CONNECTIONS}':>22}{f'events/s, {STREAMS}x{EVENTS}':>24}"]
    for name, at in medians.items():
        slower = f"{at.sequential_p50_ms:.2f} ms ({at.sequential_p50_ms / base.sequential_p50_ms:.1f})"
        rate = f"{at.requests_per_s:,.0f} ({at.requests_per_s / base.requests_per_s:.2f})"
        events = f"{at.events_per_s:,.0f} ({at.events_per_s / base.events_per_s:.2f})"
        lines.append(f"{name:18}{slower:>22}{rate:>22}{events:>24}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each requests-per-second measurement")
    options = parser.parse_args()
    medians = uvloop.run(run(options.rounds, options.seconds))
    if options.json:
        print(json.dumps({name: asdict(figures) for name, figures in medians.items()}, indent=2))
    else:
        print(table(medians))


if __name__ == "__main__":
    main()
