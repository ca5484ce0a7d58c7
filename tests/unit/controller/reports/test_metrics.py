"""The controller's metrics: what they say, and that the docs say the same."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry

from contract.admin import Drift, DriftItem
from controller.engines.stub import StubDefinition
from controller.hosts import Gpu, GpuProcess, Host, HostState, UnreadGpu
from controller.memory_estimator import Estimate
from controller.model_status import Round, assess_models
from controller.planning.actions import Start
from controller.planning.plan import plan
from controller.reconciler import Reconciler
from controller.reports.metrics import MemorySource, RoundCounts, create_registry
from controller.state import (
    DesiredModel,
    DesiredState,
    Failure,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    Requirement,
    Statement,
)

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


@dataclass
class Rounds:
    """As much of a reconciler as its metrics read."""

    round: Round | None
    error: str | None = None


def _registry(reconciler: Rounds) -> CollectorRegistry:
    item = DriftItem(model="m", replica=None, kind="missing", declared=2, running=0, since=1.0, message="it is missing")
    counts = RoundCounts()
    if reconciler.round is not None:
        counts.count_round(_round(), _later_round())
    return create_registry(
        cast("Reconciler", reconciler),
        lambda: {"start": 2},
        counts,
        lambda: Drift(items=[item], checked_at=5.0),
        MemorySource(
            lambda _: {"m": Estimate(4_000, 500, "predicted", 1), "cpu": Estimate(0, 700, "predicted")},
            lambda *_: {"m": Requirement(4_100, None), "cpu": Requirement(None, 650)},
        ),
    )


def _round() -> Round:
    statement = Statement("file", 0.0, "enabled")
    model = DesiredModel("m", StubDefinition(backend="stub"), "stub", "h", 2, statement, gpu_count=3)
    desired = DesiredState(1, {"m": model})
    replica = ObservedReplica(ReplicaId("leaving", 0, "h"), "rh-i-leaving-0-h-1", Phase.RUNNING, 1.0)
    processes = (GpuProcess(7, 200, "python3", replica.name), GpuProcess(8, 60, "Xorg"), GpuProcess(9, None, "a"))
    gpus = (
        Gpu("GPU-a", 0, "fake", 1_000, 300, utilization_percent=40, processes=processes),
        Gpu("MIG-b", 1, "fake MIG 1g", 100, 30, mig=2),
    )
    unread_gpus = (UnreadGpu(2, "it has fallen off the bus", "GPU-c"), UnreadGpu(3, "Unknown Error"))
    observed = ObservedState(5.0, (replica,), hosts=(Host(gpus=gpus, unread_gpus=unread_gpus),))
    made = plan(desired, observed, 5.0)
    return Round(desired, observed, made, assess_models(desired, observed, made))


def _named_round() -> Round:
    """Two hosts, of which one is silent."""
    gpu = Gpu("GPU-a", 0, "fake", 1_000, 300, host="a")
    unread = UnreadGpu(1, "it has fallen off the bus", "GPU-b", host="b")
    hosts = (Host("a", gpus=(gpu,)), Host("b", HostState.SILENT, unread_gpus=(unread,)))
    before = _round()
    return replace(before, observed=replace(before.observed, hosts=hosts, is_cut_off=True))


def _later_round() -> Round:
    """One replica got ready, another crashed, a load failed and is tried again, and a model was evicted."""
    before = _round()
    replica = before.observed.replicas[0]
    ready = replace(replica, name="rh-i-m-0-h-2", id=ReplicaId("m", 0, "h", 2), started_at=2.0, ready_since=6.5)
    crashed = replace(replica, name="rh-i-m-1-h-1", id=ReplicaId("m", 1, "h", 1), ready_since=1.0)
    failures = {
        ReplicaId("m", 1, "h", 1).key: Failure(1, 4.0, "it crashed", None, 1),
        ReplicaId("n", 0, "h", 1).key: Failure(3, 4.0, "no such file", None, 1),
    }
    observed = replace(before.observed, replicas=(replica, ready, crashed), failures=failures)
    starts = (Start(ReplicaId("n", 0, "h", 2), "it failed"), Start(ReplicaId("other", 0, "h", 1), "it is wanted"))
    made = replace(before.plan, actions=starts, evicted={"leaving": "it makes room", "too": "it makes room"})
    return Round(before.desired, observed, made, before.statuses)


def check_samples(registry: CollectorRegistry, *samples: tuple[str, dict[str, str], float | None]) -> None:
    """Each metric of Roundhouse, with these labels, has this value."""
    for name, labels, value in samples:
        assert registry.get_sample_value(f"roundhouse_{name}", labels) == value, (name, labels)


def test_what_changes_between_rounds_is_counted_once() -> None:
    counts = RoundCounts()
    before, after = _round(), _later_round()
    crashed_before = replace(
        before, observed=replace(before.observed, replicas=(*before.observed.replicas, after.observed.replicas[2]))
    )
    counts.count_round(None, before)
    counts.count_round(crashed_before, after)
    counts.count_round(after, replace(after, plan=replace(after.plan, actions=())))
    counts.count_round(after, None)
    counts.record_duration(0.2)
    registry = create_registry(cast("Reconciler", Rounds(None)), dict, counts)
    check_samples(
        registry,
        ("model_loads_total", {"model": "m", "result": "loaded"}, 1),
        ("model_load_seconds_sum", {"model": "m"}, 4.5),
        ("model_loads_total", {"model": "n", "result": "failed"}, 1),
        ("model_loads_total", {"model": "m", "result": "failed"}, None),
        ("model_crashes_total", {"model": "m"}, 1),
        ("model_restarts_total", {"model": "n"}, 1),
        ("model_restarts_total", {"model": "other"}, None),
        ("model_evictions_total", {"model": "leaving"}, 1),
        ("controller_swaps_total", {}, 1),
        ("controller_reconcile_errors_total", {}, 1),
        ("controller_reconcile_seconds_count", {}, 1),
    )


def test_a_paused_controller_restarts_nothing() -> None:
    counts, after = RoundCounts(), _later_round()
    counts.count_round(_round(), replace(after, desired=replace(after.desired, paused=True)))
    registry = create_registry(cast("Reconciler", Rounds(None)), dict, counts)
    check_samples(registry, ("model_restarts_total", {"model": "n"}, None))


def test_the_docs_hold_the_same_metrics() -> None:
    rows = re.findall(
        r"^\| `(roundhouse_(?!gateway|engine)\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", DOCS.read_text(), re.MULTILINE
    )
    documented = {(name, kind, tuple(re.findall(r"\w+", labels)), text) for name, kind, labels, text in rows}
    served = set()
    named = {"roundhouse_host_state", "roundhouse_hosts_cut_off"}
    several = [each for each in _registry(Rounds(_named_round())).collect() if each.name in named]
    for family in [*_registry(Rounds(_round())).collect(), *several]:
        if family.name.startswith("process_"):
            continue  # the client library's
        name = f"{family.name}_total" if family.type == "counter" else family.name
        [labels] = {tuple(each for each in sample.labels if each != "le") for sample in family.samples}
        served.add((name, family.type, labels, family.documentation))
    assert documented == served


def test_hosts_with_a_name_have_states_and_are_a_label_of_their_gpus() -> None:
    registry = _registry(Rounds(_named_round()))
    check_samples(
        registry,
        ("host_state", {"host": "a", "state": "ready"}, 1),
        ("host_state", {"host": "a", "state": "silent"}, 0),
        ("host_state", {"host": "b", "state": "silent"}, 1),
        ("hosts_cut_off", {}, 1),
        ("gpu_used_mib", {"gpu": "a/0", "uuid": "GPU-a", "host": "a"}, 300),
        ("gpu_unread", {"gpu": "b/1", "uuid": "GPU-b", "host": "b"}, 1),
    )
    assert not [family.name for family in _registry(Rounds(_round())).collect() if "host_" in family.name]


def test_metrics_of_a_round_have_their_values() -> None:
    registry = _registry(Rounds(_round()))
    check_samples(
        registry,
        ("controller_observation_ok", {}, 1),
        ("controller_actions_total", {"kind": "start"}, 2),
        ("controller_blocked", {}, 1),
        ("controller_drift", {"kind": "missing"}, 1),
        ("controller_drift", {"kind": "image"}, 0),
        ("model_state", {"model": "m", "state": "failed"}, 1),
        ("model_state", {"model": "m", "state": "loaded"}, 0),
        ("model_replicas_wanted", {"model": "m"}, 2),
        ("model_predicted_mib", {"model": "m", "place": "gpu"}, 4_000),
        ("model_predicted_mib", {"model": "cpu", "place": "gpu"}, None),
        ("model_observed_mib", {"model": "m", "place": "gpu"}, 4_100),
        ("model_observed_mib", {"model": "m", "place": "host"}, None),
        ("model_observed_mib", {"model": "cpu", "place": "host"}, 650),
        ("gpu_used_mib", {"gpu": "0", "uuid": "GPU-a"}, 300),
        ("gpu_used_mib", {"gpu": "1:2", "uuid": "MIG-b"}, 30),
        ("gpu_utilization_ratio", {"gpu": "0", "uuid": "GPU-a"}, 0.4),
        ("gpu_utilization_ratio", {"gpu": "1:2", "uuid": "MIG-b"}, None),
        ("gpu_unread", {"gpu": "2", "uuid": "GPU-c"}, 1),
        ("gpu_unread", {"gpu": "3", "uuid": ""}, 1),
    )
    held = [each for family in registry.collect() if "model_used" in family.name for each in family.samples]
    assert [(each.labels, each.value) for each in held] == [({"gpu": "0", "uuid": "GPU-a", "model": "leaving"}, 200)]


def test_before_the_first_round_only_that_is_said() -> None:
    registry = _registry(Rounds(None))
    check_samples(registry, ("controller_observation_ok", {}, 0), ("controller_paused", {}, None))


def test_the_controllers_own_process_is_among_them() -> None:
    registry = _registry(Rounds(None))
    for name in ("process_resident_memory_bytes", "process_open_fds"):
        assert (registry.get_sample_value(name) or 0) > 0, name


def test_alerts_and_dashboards_name_only_metrics_that_exist() -> None:
    grafana = Path(__file__).parents[4] / "grafana"
    known = set(re.findall(r"`(roundhouse_\w+)`", DOCS.read_text()))
    used: set[str] = set()
    for path in grafana.rglob("*"):
        if path.suffix in (".json", ".yaml"):
            used |= set(
                re.findall(r"(?<![:\w])roundhouse_(?:gateway|controller|model|gpu|retrieval)_\w+", path.read_text())
            )
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert used
    assert bare <= known, bare - known
