"""What operators read of a round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contract.keys import Key
from contract.status import ControllerStatus, Problem
from controller.engines.stub import StubDefinition
from controller.hosts import Gpu, Host, HostState, UnreadGpu
from controller.model_status import Round, assess_models
from controller.planning.plan import plan
from controller.reports.views import Traffic, live_row, plan_view, status_view
from controller.state import (
    DesiredModel,
    DesiredState,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
    Statement,
)

NOW = 1_000.0
MODEL = DesiredModel("m", StubDefinition(backend="stub"), "stub", "new", 1, Statement("file", 5.0, "enabled"))
OLD = ObservedReplica(
    ReplicaId("m", 0, "old"), "rh-m-0", Phase.RUNNING, 1.0, 1.0, Health.READY, 2.0, "http://x", {"GPU-a": 300}
)


def _round(observed: ObservedState) -> Round:
    desired = DesiredState(3, {"m": MODEL}, paused=True)
    made = plan(desired, observed, NOW)
    return Round(desired, observed, made, assess_models(desired, observed, made))


def _status(seen: Round | None = None, error: str | None = None, **fields: Any) -> ControllerStatus:
    """What operators read of the controller."""
    known: dict[str, Any] = {
        "instance": "i", "version": "1", "runtime": "docker", "generation": 0, "gateways": ["g"],
        "gateway_addresses": ["http://127.0.0.1:8080"],
    }  # fmt: skip
    keys = fields.pop("keys", ())
    return status_view(ControllerStatus(observation_error=error, **known | fields), seen, keys, NOW)


def test_a_plan_shows_what_an_edit_will_do_before_it_was_looked_at_and_what_is_wrong_as_blocked() -> None:
    view = plan_view(_round(ObservedState(NOW, (OLD,))), NOW)
    [action] = view.actions
    assert (action.kind, action.replica, view.paused) == ("start", "m/0", True)
    assert "edited" in action.reason
    failed = {PreflightKey("m", "new"): PreflightResult(False, NOW, "model_path: no such file")}
    view = plan_view(_round(ObservedState(NOW, (OLD,), preflights=failed)), NOW)
    assert view.actions == []
    assert [item.reason for item in view.blocked] == ["model_path: no such file"]


def test_status_before_and_after_the_first_round() -> None:
    problem = Problem(file="models.yaml", line=3, field="models.m", message="is wrong")
    before = _status(error="the daemon is down", unsaved=["x"])
    assert (before.models, before.observation_error, before.observed_at) == ([], "the daemon is down", None)
    assert before.unsaved == ["x"]
    gpus = (Gpu("GPU-a", 0, "fake", 1_000, 400),)
    after = _status(_round(ObservedState(NOW, (OLD,), hosts=(Host(gpus=gpus),))), desired_problems=[problem])
    assert after.generation == 3
    assert after.gpus is not None
    assert (after.gpus[0].used_mib, after.gpus[0].claimed_mib) == (400, 300)
    assert str(after.desired_problems[0]) == "models.yaml:3: models.m: is wrong"


def test_a_status_tells_keys_in_force_apart_from_expired_ones() -> None:
    keys = [
        Key(name="ci", sha256="1", tenant="t"),
        Key(name="bob", sha256="2", tenant="t", expires_at=NOW),
        Key(name="alice", sha256="3", tenant="t", expires_at=NOW + 1),
    ]
    seen = _status(keys=keys)
    assert (seen.keys, seen.expired_keys) == (["alice", "ci"], ["bob"])
    assert seen.gateway_addresses == ["http://127.0.0.1:8080"]


def test_a_gpu_that_cannot_be_read_is_shown_with_its_reason_and_with_what_is_claimed_of_it() -> None:
    lost = (UnreadGpu(1, "it has fallen off the bus", "GPU-a", "0000:0a:00.0"), UnreadGpu(2, "Unknown Error", mig=3))
    for gpus in ((), None):
        first, second = _status(
            _round(ObservedState(NOW, (OLD,), hosts=(Host(gpus=gpus, unread_gpus=lost),)))
        ).unread_gpus
        assert (first.index, first.uuid, first.pci_address, first.claimed_mib) == (1, "GPU-a", "0000:0a:00.0", 300)
        words = "GPU 1 (GPU-a, PCI 0000:0a:00.0) is left out: it has fallen off the bus"
        assert (first.description, first.reason) == (words, "it has fallen off the bus")
        assert (second.index, second.mig, second.uuid, second.claimed_mib) == (2, 3, None, None), "unknown is not zero"


def test_the_main_memory_that_a_model_without_a_gpu_declares_is_its_estimate() -> None:
    [status] = _round(ObservedState(NOW)).statuses
    traffic = Traffic((), NOW)
    for want, shown in (
        (MODEL, (50, "observed_load_delta")),
        (replace(MODEL, memory_mib=2_000_000), (2_000_000, "declared")),
        (replace(MODEL, gpu_count=1, memory_mib=2_000_000), (50, "observed_load_delta")),
    ):
        row = live_row(want, status, traffic, None, observed_mib=50)
        assert (row.vram_estimate_mib, row.vram_estimate_source) == shown


def test_hosts_are_in_the_status_of_an_installation_with_several_alone() -> None:
    on_b = replace(OLD, host="b", claims={"GPU-b": 300, "host:b": 20})
    hosts = (Host("a"), Host("b", memory_mib=64, gpus=(Gpu("GPU-b", 0, "H200", 1_000, 400, host="b"),)))
    status = _status(_round(ObservedState(NOW, (on_b,), hosts=hosts, is_cut_off=True)))
    assert [(each.name, each.engines, each.claimed_mib) for each in status.hosts] == [
        ("a", [], 0),
        ("b", ["rh-m-0"], 20),
    ]
    shown = status.model_dump(mode="json", exclude_unset=False)
    assert (shown["is_cut_off"], shown["gpus"][0]["host"], shown["models"][0]["replicas"][0]["host"]) == (
        True,
        "b",
        "b",
    )
    shown = _status(_round(ObservedState(NOW, (OLD,), hosts=(Host(gpus=(Gpu("GPU-a", 0, "H200", 9),)),)))).model_dump()
    assert not {"hosts", "is_cut_off"} & shown.keys()
    assert "host" not in shown["gpus"][0]
    assert "host" not in shown["models"][0]["replicas"][0]


def test_a_plan_says_on_which_host_something_is_done() -> None:
    hosts = (Host("a", HostState.SILENT), Host("b"))
    view = plan_view(_round(ObservedState(NOW, hosts=hosts)), NOW)
    assert [(each.kind, each.host) for each in view.actions] == [("start", "b")]
