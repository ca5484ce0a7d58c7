"""What the relay of a host costs, and what a second host brings: one gateway, and engines that keep a pace, reached
directly and through the relays of two hosts with TLS.

Requests one after the other say what a request takes longer; closed loops of clients say what is left of the tokens per
second. Every round measures both ways, in the reverse order of the round before; ratios are medians of the rounds'.
Two equal hosts, of which each takes 16 requests at a time, are compared with one of them, both with clients enough.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop

from contract.hosts import HostReplica, HostReplicaId
from contract.routing import Endpoint
from controller.runtimes.cluster.material import ensure_material, write_credentials
from controller.runtimes.cluster.relay_keeper import RelayKeeper, describe_tls, list_relay_names
from tests.bench.bench_pace import LOADS, Load, Sample, measure_load
from tests.bench.load import CHAT, allow_many_files, request_bytes, sequential_p50_ms
from tests.bench.report import Figure, median_ratio
from tests.bench.targets import Target, declared_keys, start_controller, start_gateway, start_module
from tests.fakes.fake_controller import route
from tests.support.ports import free_port
from tests.support.relays import find_relay
from tests.support.wait import until

DIRECT, RELAYED, ONE_HOST, TWO_HOSTS = "direct", "relayed", "one-host", "two-hosts"
"""The models of the gateway."""
HOSTS: Final = {"b": "127.0.0.2", "c": "127.0.0.3"}
CROWD: Final = Load(64, 0.02)
REQUESTS: Final = 400


@contextlib.asynccontextmanager
async def _start(secret: str) -> AsyncIterator[tuple[Target, psutil.Process]]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench")))
        endpoints = [await _start_host(stack, folder / name, name) for name in HOSTS]
        controller = await start_controller(stack)
        gateway = await start_gateway(stack, controller, folder)
        more: dict[str, Any] = {"target_inflight": 4096, "queue_limit": 4096, "apis": (CHAT,)}
        models = [route(DIRECT, [endpoints[0][0]], **more)]
        for name, slots, count in ((RELAYED, 4096, 1), (ONE_HOST, 16, 1), (TWO_HOSTS, 16, 2)):
            there = tuple(endpoint for _, endpoint in endpoints[:count])
            model = route(name, **more | {"target_inflight": slots})
            models.append(model.model_copy(update={"endpoints": there}))
        await controller.publish(
            *models, keys=tuple(key.model_copy(update={"models": None}) for key in declared_keys(secret))
        )
        pid = await until("the relay runs", lambda: find_relay(folder / "b"))
        await until("the gateway answers", lambda: _answers(gateway, secret))
        yield gateway, psutil.Process(pid)


async def _start_host(stack: contextlib.AsyncExitStack, folder: Path, name: str) -> tuple[str, Endpoint]:
    """Start a host's engine and relay. Returns where the engine listens, and how it is reached through the relay."""
    _, engine_port = await start_module(stack, "tests.bench.engine")
    url, now = f"http://127.0.0.1:{int(engine_port)}", time.time()
    material = ensure_material(folder.parent, "bench", is_insecure=False, now=now)
    files = write_credentials(material, folder, list_relay_names(name), [HOSTS[name]], now=now)
    keeper = RelayKeeper(folder, name, HOSTS[name], free_port(), files)
    stack.push_async_callback(keeper.close)
    identity = HostReplicaId(model=RELAYED, index=0, spec_hash="0", attempt=1)
    replica = HostReplica(id=identity, name=f"rh-bench-{name}", phase="running", created_at=now, base_url=url)
    stack.push_async_callback(keeper.publish, [])
    (there,) = await keeper.publish([replica])
    assert there.base_url is not None
    assert there.tls is not None
    tls = describe_tls(files, there.tls.server_name)
    return url, Endpoint(replica=f"relayed-{name}", base_url=there.base_url, tls=tls)


async def _answers(gateway: Target, secret: str) -> bool:
    with contextlib.suppress(OSError, RuntimeError):  # it has no routing table yet
        for model in (DIRECT, RELAYED):
            await sequential_p50_ms(gateway.port, request_bytes(gateway.port, secret, model=model), 1, 1)
        return True
    return False


async def _measure_all(rounds: int) -> list[Figure]:
    secret = f"sk-{secrets.token_urlsafe(32)}"
    p50_ms: dict[str, list[float]] = {DIRECT: [], RELAYED: []}
    samples: dict[tuple[str, str], list[Sample]] = {(load.name, way): [] for load in LOADS for way in p50_ms}
    crowds: dict[str, list[Sample]] = {ONE_HOST: [], TWO_HOSTS: []}
    relay_cores: dict[str, list[float]] = {load.name: [] for load in LOADS}
    async with _start(secret) as (gateway, relay):
        for number in range(rounds):
            ways = (DIRECT, RELAYED) if number % 2 == 0 else (RELAYED, DIRECT)
            for way in ways:
                asked = request_bytes(gateway.port, secret, model=way)
                p50_ms[way].append(await sequential_p50_ms(gateway.port, asked, REQUESTS, 10))
            for load in LOADS:
                for way in ways:
                    before, begun = relay.cpu_times(), time.perf_counter()
                    samples[load.name, way].append(await measure_load(gateway, load, secret, way))
                    after, lasted_s = relay.cpu_times(), time.perf_counter() - begun
                    if way == RELAYED:
                        used_s = after.user + after.system - before.user - before.system
                        relay_cores[load.name].append(used_s / lasted_s)
            for model, found in crowds.items():
                found.append(await measure_load(gateway, CROWD, secret, model))
        resident_mib = relay.memory_info().rss / 2**20
    added_ms = statistics.median(one - other for one, other in zip(p50_ms[RELAYED], p50_ms[DIRECT], strict=True))
    shown = [
        Figure("the relay adds to a request, p50", added_ms, "ms", "<= 0.3"),
        Figure("a request without it, p50", statistics.median(p50_ms[DIRECT]), "ms"),
    ]
    one, two = ([each.tokens_per_s for each in crowds[model]] for model in (ONE_HOST, TWO_HOSTS))
    shown += [
        Figure("tokens/s of one host with 16 slots", statistics.median(one), "tokens/s"),
        Figure("tokens/s of two such hosts over one", median_ratio(two, one), "x", ">= 1.9"),
    ]
    for load in LOADS:
        direct, relayed = samples[load.name, DIRECT], samples[load.name, RELAYED]
        ratio = median_ratio((each.tokens_per_s for each in relayed), (each.tokens_per_s for each in direct))
        added_ms = statistics.median(one.first_ms - other.first_ms for one, other in zip(relayed, direct, strict=True))
        cores = statistics.median(one.cores - other.cores for one, other in zip(relayed, direct, strict=True))
        shown += [
            Figure(f"{load.name}: tokens/s through the relay over direct", ratio, "x", ">= 0.97"),
            Figure(f"{load.name}: the relay adds to the first token", added_ms, "ms"),
            Figure(f"{load.name}: cores used by the relay", statistics.median(relay_cores[load.name]), ""),
            Figure(f"{load.name}: more cores used by the gateway, for TLS", cores, ""),
        ]
    return [*shown, Figure("resident of the relay", resident_mib, "MiB")]


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure. `arguments`: `--rounds N`."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    allow_many_files()
    return uvloop.run(_measure_all(options.rounds))
