"""`plan()` for many models: is it fast, and does it grow with the number of models and not faster?"""

from __future__ import annotations

import statistics
import time

from controller.engines.stub import StubDefinition
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
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
    preflights = {(name, "new"): PreflightResult(True, NOW) for name in names}
    return DesiredState(1, desired), ObservedState(NOW, observed, preflights=preflights)


def _median_ms(models: int, replicas: int, running_hash: str) -> float:
    desired, observed = _state(models, replicas, running_hash)
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
    return [
        Figure("plan, 1,000 models x 3 replicas, at rest", at_rest, "ms", aim="< 50 ms"),
        Figure("plan, 1,000 models x 3 replicas, all edited", all_edited, "ms", aim="< 50 ms"),
        Figure("plan, time for 1,000 models over 100 models", at_rest / tenth, "x", aim="about 10: linear"),
    ]
