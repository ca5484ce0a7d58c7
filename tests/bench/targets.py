"""What the gateway's benchmark measures: the engine itself, and three proxies in front of it, all on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import psutil

from contract.keys import Key
from tests.bench import baseline, litellm
from tests.bench.load import CHAT, close, connect, request_bytes
from tests.fakes.fake_controller import FakeController, route
from tests.support.compiled_gateway import build_gateway, environment_of
from tests.support.ports import free_port

NO_PROXY, NGINX, LITELLM, GATEWAY = "no proxy", "nginx", "LiteLLM", "gateway"
COMPILED, BASELINE = "compiled gateway", f"gateway of {baseline.COMMIT}"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "roundhouse"
KEYS = 50
"""Keys that the gateway knows."""
AMPLE = 1_000_000_000
"""A limit that is kept and never reached."""
_START_LIMIT_S = 90
_STOP_LIMIT_S = 10
_NGINX_CONF = """
daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {folder}/nginx.pid; error_log stderr crit;
events {{ worker_connections 10000; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 1024; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{
    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    proxy_read_timeout 300s; }} }}
}}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A process of a benchmark that answers chat completions on a port of 127.0.0.1: a gateway, a proxy or an engine.
    Whoever started it ends it."""

    name: str
    port: int
    pid: int

    @property
    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.pid)
        return [own, *own.children(recursive=True)]

    def cpu_s(self) -> float:
        """Seconds of CPU used so far."""
        times = [process.cpu_times() for process in self.processes]
        return sum(time.user + time.system for time in times)

    def resident_mib(self) -> float:
        """Resident memory (VmRSS)."""
        found = (Path(f"/proc/{process.pid}/status").read_text() for process in self.processes)
        return sum(int(match[1]) for text in found if (match := re.search(r"VmRSS:\s+(\d+)", text))) / 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """What the targets share. `stack` ends what they start."""

    stack: contextlib.AsyncExitStack
    folder: Path
    secret: str
    engine_port: int


@contextlib.asynccontextmanager
async def process(
    command: Sequence[str],
    *,
    out: int | IO[bytes],
    err: IO[bytes] | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, **(env or {})}
    started = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=err, env=environment, cwd=cwd)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.terminate()
        try:
            await asyncio.wait_for(started.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            started.kill()
            await started.wait()


async def start_module(stack: contextlib.AsyncExitStack, module: str) -> tuple[asyncio.subprocess.Process, bytes]:
    """A program of this folder, and the first line that it prints. `stack` ends it."""
    started = await stack.enter_async_context(process([sys.executable, "-m", module], out=asyncio.subprocess.PIPE))
    assert started.stdout is not None
    return started, await started.stdout.readline()


async def start_controller(stack: contextlib.AsyncExitStack) -> FakeController:
    controller = FakeController()
    await controller.start()
    stack.push_async_callback(controller.stop)
    return controller


async def start_gateway(
    stack: contextlib.AsyncExitStack, controller: FakeController, state: Path, *module: str, **env: str
) -> Target:
    """`module`: another one than `gateway`, with its arguments. `env`: its further variables."""
    port = free_port()
    env = {
        "ROUNDHOUSE_PORT": str(port),
        "ROUNDHOUSE_CONTROLLER_URL": controller.url,
        "ROUNDHOUSE_STATE": str(state),
        "ROUNDHOUSE_LOG_LEVEL": "error",
        **env,
    }
    command = [sys.executable, "-m", *(module or ("gateway",))]
    started = await stack.enter_async_context(process(command, out=asyncio.subprocess.DEVNULL, env=env))
    return Target(GATEWAY, port, started.pid)


@contextlib.asynccontextmanager
async def targets(
    secret: str, wanted: Collection[str], *, samples: Path | None = None, env: dict[str, str] | None = None
) -> AsyncIterator[list[Target]]:
    """Those that are wanted and can be had, all of them running; what cannot be had is told. No proxy comes first.

    `samples`: the gateway samples itself, and writes there (see sampled_gateway). `env`: further variables of the
    gateway's.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench")))
        engine, engine_port = await start_module(stack, "tests.bench.engine")
        direct = Target(NO_PROXY, int(engine_port), engine.pid)
        setting = Setting(stack, folder, secret, direct.port)
        found: list[Target | None] = [direct]
        if NGINX in wanted:
            found.append(await _start_nginx(setting))
        if LITELLM in wanted:
            found.append(await _start_litellm(setting))
        if GATEWAY in wanted:
            module = () if samples is None else ("tests.bench.sampled_gateway", str(samples))
            found.append(await _start_gateway(setting, GATEWAY, *module, **(env or {})))
        if COMPILED in wanted:
            found.append(await _start_compiled(setting))
        if BASELINE in wanted:
            found.append(await _start_baseline(setting))
        yield [target for target in found if target is not None and await _is_up(target, secret)]


async def _start_gateway(setting: Setting, name: str, *module: str, **env: str) -> Target:
    controller = await start_controller(setting.stack)
    state = setting.folder / name.replace(" ", "-")
    state.mkdir()
    started = await start_gateway(setting.stack, controller, state, *module, **env)
    urls = [f"http://127.0.0.1:{setting.engine_port}"]
    model = route("bench", urls, target_inflight=4096, queue_limit=4096, apis=(CHAT,))
    await controller.publish(model, keys=declared_keys(setting.secret))
    return replace(started, name=name)


async def _start_compiled(setting: Setting) -> Target | None:
    try:
        folder = await asyncio.to_thread(build_gateway)
    except subprocess.CalledProcessError as error:
        print(f"the gateway cannot be compiled; measuring without that: {error}", file=sys.stderr)
        return None
    return await _start_gateway(setting, COMPILED, **environment_of(folder))


async def _start_baseline(setting: Setting) -> Target | None:
    try:
        folder = await asyncio.to_thread(baseline.checkout, CACHE)
    except baseline.NoBaselineError as error:
        print(f"measuring without the gateway of {baseline.COMMIT}: {error}", file=sys.stderr)
        return None
    command = [sys.executable, baseline.__file__, setting.secret]
    started = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=folder
    )
    assert started.stdin is not None
    assert started.stdout is not None
    setting.stack.push_async_callback(started.wait)
    setting.stack.callback(started.stdin.close)
    return Target(BASELINE, **json.loads(await started.stdout.readline()))


async def _start_nginx(setting: Setting) -> Target | None:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        print("nginx is not installed; measuring without it", file=sys.stderr)
        return None
    port = free_port()
    config = setting.folder / "nginx.conf"
    config.write_text(_NGINX_CONF.format(folder=setting.folder, engine=setting.engine_port, port=port))
    command = [nginx, "-c", str(config), "-p", str(setting.folder)]
    started = await setting.stack.enter_async_context(process(command, out=asyncio.subprocess.DEVNULL))
    return Target(NGINX, port, started.pid)


async def _start_litellm(setting: Setting) -> Target | None:
    try:
        program = await asyncio.to_thread(litellm.installed, CACHE)
    except litellm.UnavailableError as error:
        print(f"LiteLLM cannot be installed; measuring without it: {error}", file=sys.stderr)
        return None
    port = free_port()
    config = setting.folder / "litellm.yaml"
    config.write_text(litellm.config(setting.engine_port, setting.secret))
    log = setting.stack.enter_context((setting.folder / "litellm.log").open("wb"))
    command = litellm.command(program, config, port)
    started = await setting.stack.enter_async_context(process(command, out=log, env=litellm.ENV, cwd=setting.folder))
    return Target(LITELLM, port, started.pid)


def declared_keys(secret: str) -> tuple[Key, ...]:
    """Keys with every limit that there is; the last one is the secret's."""
    drawn = [*(secrets.token_urlsafe(32) for _ in range(KEYS - 1)), secret]
    return tuple(
        Key(
            name=f"key-{number}",
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            tenant=f"tenant-{number % 5}",
            models=("bench", "other-*"),
            weight=1.0 + number % 3,
            requests_per_minute=AMPLE,
            tokens_per_minute=AMPLE,
            concurrency=AMPLE,
            expires_at=4e9,
        )
        for number, text in enumerate(drawn)
    )


async def _is_up(target: Target, secret: str) -> bool:
    """Wait until it answers. What we compare with may fail to start, which is told; the gateway may not."""
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while True:
                if await _answers(target, secret):
                    return True
                await asyncio.sleep(0.05)
    except (TimeoutError, ProcessLookupError) as error:
        if target.name in (NO_PROXY, GATEWAY):
            raise
        print(f"{target.name} does not start; measuring without it: {error!r}", file=sys.stderr)
        return False


async def _answers(target: Target, secret: str) -> bool:
    if not psutil.pid_exists(target.pid):
        raise ProcessLookupError(f"{target.name} ended before it answered")
    try:
        (connection,) = await connect(target.port, 1)
        await connection.ask(request_bytes(target.port, secret))
    except (OSError, RuntimeError):
        return False
    close([connection])
    return True
