"""The controller's metrics: what they say, and that the docs say the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry

from controller.engines.stub import StubDefinition
from controller.planning.plan import plan
from controller.reconcile.reconciler import Reconciler
from controller.reports.metrics import create_registry
from controller.state import (
    DesiredModel,
    DesiredState,
    Gpu,
    GpuProcess,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    Statement,
    UnreadGpu,
)
from controller.status.model_status import assess_models
from controller.status.reconcile_round import Round

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


@dataclass
class Rounds:
    """As much of a reconciler as its metrics read."""

    round: Round | None
    error: str | None = None


def _registry(reconciler: Rounds) -> CollectorRegistry:
    return create_registry(cast("Reconciler", reconciler), lambda: {"start": 2})


def _round() -> Round:
    model = DesiredModel(
        "m", StubDefinition(backend="stub"), "stub", "h", 2, Statement("file", 0.0, "enabled"), gpu_count=3
    )
    desired = DesiredState(1, {"m": model})
    replica = ObservedReplica(ReplicaId("leaving", 0, "h"), "rh-i-leaving-0-h-1", Phase.RUNNING, 1.0)
    processes = (GpuProcess(7, 200, "python3", replica.name), GpuProcess(8, 60, "Xorg"), GpuProcess(9, None, "a"))
    gpus = (
        Gpu("GPU-a", 0, "fake", 1_000, 300, utilization_percent=40, processes=processes),
        Gpu("MIG-b", 1, "fake MIG 1g", 100, 30, mig=2),
    )
    unread_gpus = (UnreadGpu(2, "it has fallen off the bus", "GPU-c"), UnreadGpu(3, "Unknown Error"))
    observed = ObservedState(5.0, (replica,), gpus=gpus, unread_gpus=unread_gpus)
    made = plan(desired, observed, 5.0)
    return Round(desired, observed, made, assess_models(desired, observed, made))


def test_the_docs_hold_the_same_metrics() -> None:
    rows = re.findall(
        r"^\| `(roundhouse_(?!gateway)\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", DOCS.read_text(), re.MULTILINE
    )
    documented = {(name, kind, tuple(re.findall(r"\w+", labels)), text) for name, kind, labels, text in rows}
    served = set()
    for family in _registry(Rounds(_round())).collect():
        if family.name.startswith("process_"):
            continue  # the client library's
        name = f"{family.name}_total" if family.type == "counter" else family.name
        [labels] = {tuple(sample.labels) for sample in family.samples}
        served.add((name, family.type, labels, family.documentation))
    assert documented == served


def test_the_controllers_own_process_is_among_them() -> None:
    registry = _registry(Rounds(None))
    assert (registry.get_sample_value("process_resident_memory_bytes") or 0) > 0
    assert (registry.get_sample_value("process_open_fds") or 0) > 0


def test_what_they_say() -> None:
    registry = _registry(Rounds(_round()))
    value = registry.get_sample_value
    assert value("roundhouse_controller_observation_ok") == 1
    assert value("roundhouse_controller_actions_total", {"kind": "start"}) == 2
    assert value("roundhouse_controller_blocked") == 1
    assert value("roundhouse_model_state", {"model": "m", "state": "failed"}) == 1
    assert value("roundhouse_model_state", {"model": "m", "state": "loaded"}) == 0
    assert value("roundhouse_model_replicas_wanted", {"model": "m"}) == 2
    assert value("roundhouse_gpu_used_mib", {"gpu": "0", "uuid": "GPU-a"}) == 300
    assert value("roundhouse_gpu_used_mib", {"gpu": "1:2", "uuid": "MIG-b"}) == 30
    assert value("roundhouse_gpu_utilization_ratio", {"gpu": "0", "uuid": "GPU-a"}) == 0.4
    assert value("roundhouse_gpu_utilization_ratio", {"gpu": "1:2", "uuid": "MIG-b"}) is None
    assert value("roundhouse_gpu_unread", {"gpu": "2", "uuid": "GPU-c"}) == 1
    assert value("roundhouse_gpu_unread", {"gpu": "3", "uuid": ""}) == 1
    held = [each for family in registry.collect() if "model_used" in family.name for each in family.samples]
    assert [(each.labels, each.value) for each in held] == [({"gpu": "0", "uuid": "GPU-a", "model": "leaving"}, 200)]


def test_before_the_first_round_only_that_is_said() -> None:
    registry = _registry(Rounds(None))
    assert registry.get_sample_value("roundhouse_controller_observation_ok") == 0
    assert registry.get_sample_value("roundhouse_controller_paused") is None


def test_alerts_and_dashboards_name_only_metrics_that_exist() -> None:
    grafana = Path(__file__).parents[4] / "grafana"
    known = set(re.findall(r"`(roundhouse_\w+)`", DOCS.read_text()))
    used: set[str] = set()
    for path in grafana.rglob("*"):
        if path.is_file():
            used |= set(re.findall(r"\broundhouse_(?:gateway|controller|model|gpu|retrieval)_\w+", path.read_text()))
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert used
    assert bare <= known, bare - known
