"""`plan()` for many models: is it fast, and does it grow with the number of models and not faster?"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from controller.engines.stub import StubDefinition
from controller.hosts import Gpu, Host
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Health,
    ModelTraffic,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
    Statement,
)
from tests.bench.report import Figure

NOW = 1_000.0
REPEATS = 15


def _state(models: int, replicas: int, running_hash: str) -> tuple[DesiredState, ObservedState]:
    definition = StubDefinition(backend="stub")
    names = [f"model-{number}" for number in range(models)]
    desired = {
        name: DesiredModel(name, definition, "stub", "new", replicas, Statement("file", 0.0, "enabled"))
        for name in names
    }
    observed = tuple(
        ObservedReplica(
            ReplicaId(name, index, running_hash),
            f"rh-{name}-{index}",
            Phase.RUNNING,
            NOW - 100,
            NOW - 90,
            Health.READY,
            NOW - 80,
            "http://127.0.0.1:1",
        )
        for name in names
        for index in range(replicas)
    )
    preflights = {PreflightKey(name, "new"): PreflightResult(True, NOW) for name in names}
    return DesiredState(1, desired), ObservedState(NOW, observed, preflights=preflights)


def _median_ms(models: int, replicas: int, running_hash: str) -> float:
    return _median_of(*_state(models, replicas, running_hash))


def _gpu_state(models: int) -> tuple[DesiredState, ObservedState]:
    """A tenth of the models loads and a tenth has no room: requests wait for them, and nobody uses the others."""
    definition, statement = StubDefinition(backend="stub"), Statement("autoload", NOW - 500, "autoload")
    names = [f"model-{number}" for number in range(models)]
    loaded, loading = names[: models * 8 // 10], names[models * 8 // 10 : models * 9 // 10]
    desired = {
        name: DesiredModel(name, definition, "stub", "new", 1, statement, gpu_count=1, vram_mib=100, autoload=True)
        for name in names
    }
    gpu_of = {name: f"GPU-{number % 8}" for number, name in enumerate(names)}
    room_mib = 100 * models * 9 // 10 // 8 + 100
    observed = tuple(
        ObservedReplica(
            ReplicaId(name, 0, "new"),
            f"rh-{name}-0",
            Phase.RUNNING,
            NOW - 100,
            NOW - 90,
            Health.READY,
            NOW - 80,
            "http://127.0.0.1:1",
            claims={gpu_of[name]: 100},
        )
        for name in loaded
    )
    pending = {
        f"rh-{name}-0": PendingOp(OpKind.START, ReplicaId(name, 0, "new"), {gpu_of[name]: 100}, NOW - 1)
        for name in loading
    }
    unloaded = set(names) - set(loaded)
    return DesiredState(1, desired), ObservedState(
        NOW,
        observed,
        preflights={PreflightKey(name, "new"): PreflightResult(True, NOW) for name in names},
        pending=pending,
        hosts=(Host(gpus=tuple(Gpu(f"GPU-{number}", number, "GPU", room_mib, 0) for number in range(8))),),
        traffic={name: ModelTraffic(int(name in unloaded), NOW - 100, NOW - 100) for name in names},
        inflight={replica.name: 0 for replica in observed},
    )


HOSTS = tuple(Host(f"h{number:02}", gpus=()) for number in range(20))


def _on_hosts(desired: DesiredState, observed: ObservedState) -> tuple[DesiredState, ObservedState]:
    """The same, spread over 20 hosts whose starts were all checked."""
    replicas = tuple(
        replace(each, host=HOSTS[number % len(HOSTS)].name) for number, each in enumerate(observed.replicas)
    )
    preflights = {
        PreflightKey(key.model, key.spec_hash, host.name): result
        for key, result in observed.preflights.items()
        for host in HOSTS
    }
    return desired, replace(observed, replicas=replicas, preflights=preflights, hosts=HOSTS)


def _median_of(desired: DesiredState, observed: ObservedState) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        plan(desired, observed, NOW)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def run() -> list[Figure]:
    """Medians in ms, and how time grows when there are ten times as many models (10 is linear)."""
    at_rest, tenth = _median_ms(1_000, 3, "new"), _median_ms(100, 3, "new")
    all_edited = _median_ms(1_000, 3, "old")
    on_gpus = _median_of(*_gpu_state(1_000))
    spread_at_rest = _median_of(*_on_hosts(*_state(1_000, 3, "new")))
    spread_edited = _median_of(*_on_hosts(*_state(1_000, 3, "old")))
    return [
        Figure("plan, 1,000 models x 3 replicas, at rest", at_rest, "ms", aim="< 20 ms"),
        Figure("plan, 1,000 models x 3 replicas, all edited", all_edited, "ms", aim="< 20 ms"),
        Figure("plan, 1,000 autoload models on 8 GPUs, 800 loaded, 100 loading, 100 waiting", on_gpus, "ms"),
        Figure("plan at rest, on 20 hosts over one host", spread_at_rest / at_rest, "x", aim="<= 1.5"),
        Figure("plan, all edited, on 20 hosts over one host", spread_edited / all_edited, "x", aim="<= 1.5"),
        Figure("plan, time for 1,000 models over 100 models", at_rest / tenth, "x", aim="about 10: linear"),
    ]
