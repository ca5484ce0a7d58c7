"""What is known of the memory that a ready replica holds of its GPUs, and when that means that it has failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.engines.base import Verdict
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.hosts import HOST, Gpu, GpuProcess, Host
from controller.planning.actions import Stop
from controller.planning.gpu_use import SETTLED_S, UNUSED_MIB, explain_unused_gpus, measure_gpu_use
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
    Statement,
)

NOW = 10_000.0
DEFINITION, STATEMENT = LlamaServerDefinition(model_path="m.gguf", gpus=1), Statement("file", 0.0, "enabled")
WANT = DesiredModel("m", DEFINITION, "llama_server", "new", 1, STATEMENT, gpu_count=1)
ID, SINCE = ReplicaId("m", 0, "new", 1), NOW - SETTLED_S
READY = ObservedReplica(ID, "m-0", Phase.RUNNING, NOW - 90, NOW - 90, Health.READY, SINCE, claims={"GPU-a": 900})
CARD = Gpu("GPU-a", 0, "NVIDIA Fake", 24_000, 700)
OTHER = GpuProcess(5, 400, "engine", "n-0")
"""A process of another replica of ours."""
FOREIGN = GpuProcess(6, 10, "Xorg")


def own(mib: int | None) -> GpuProcess:
    return GpuProcess(7, mib, "llama-server", "m-0")


def measured(
    *processes: GpuProcess, growth: dict[str, int] | None = None, card: Gpu = CARD, known: bool = True, **fields: Any
) -> dict[str, int]:
    gpu = replace(card, processes=processes if known else None)
    return measure_gpu_use(replace(READY, **fields), (gpu,), growth or {}, NOW)


def test_the_driver_s_figures_of_all_its_processes_are_what_it_holds() -> None:
    assert measured(own(300), replace(own(200), pid=8), OTHER) == {"GPU-a": 500}
    assert measured(own(3)) == {"GPU-a": 3}
    assert measured(own(300), growth={"GPU-a": 1}) == {"GPU-a": 300}, "they tell better than growth"


def test_unknown_is_not_zero() -> None:
    assert measured() == {}, "a driver may list nothing at all, as on WSL2"
    assert measured(known=False) == {}
    assert measured(own(None), OTHER) == {}
    assert measured(own(300), replace(own(None), pid=8)) == {}
    assert measured(FOREIGN) == {}, "whether processes of ours would be found is not known"
    assert measured(replace(OTHER, mib=None)) == {}
    assert measured(replace(FOREIGN, mib=UNUSED_MIB), OTHER) == {}, "it may be this replica's"
    assert measured(replace(FOREIGN, mib=None), OTHER) == {}


def test_no_process_where_those_of_other_replicas_are_listed_is_zero() -> None:
    assert measured(OTHER) == {"GPU-a": 0}
    assert measured(OTHER, FOREIGN) == {"GPU-a": 0}


def test_where_the_driver_does_not_tell_it_is_by_how_much_the_use_grew() -> None:
    for processes, known in (((), True), ((), False), ((own(None),), True), ((FOREIGN,), True)):
        assert measured(*processes, known=known, growth={"GPU-a": 12}) == {"GPU-a": 12}
        assert measured(*processes, known=known, growth={"GPU-b": 12}) == {}


def test_nothing_is_measured_before_it_has_been_ready_for_a_while_nor_of_an_instance() -> None:
    assert measured(own(3), ready_since=None) == {}
    assert measured(own(3), ready_since=NOW - SETTLED_S + 0.1) == {}
    assert measured(own(3), growth={"GPU-a": 3}, card=replace(CARD, mig=0)) == {}
    assert measured(own(3), claims={"GPU-b": 900}) == {}
    assert measured(own(3), claims={HOST: 900}) == {}


def test_almost_nothing_of_every_gpu_that_it_claims_is_a_failure() -> None:
    two = replace(READY, claims={"GPU-a": 900, "GPU-b": 900})
    assert explain_unused_gpus(READY, {"GPU-a": UNUSED_MIB}) is None
    assert explain_unused_gpus(two, {"GPU-a": 0}) is None, "of the other nothing is known"
    assert explain_unused_gpus(two, {"GPU-a": 0, "GPU-b": UNUSED_MIB}) is None, "it computes on one of them"
    assert explain_unused_gpus(replace(READY, claims={HOST: 900}), {}) is None
    assert explain_unused_gpus(READY, {}) is None
    reason = explain_unused_gpus(two, {"GPU-a": 0, "GPU-b": UNUSED_MIB - 1})
    assert reason is not None
    assert reason.startswith("it is ready and holds 0 MiB of GPU-a and 63 MiB of GPU-b: it does not compute there")


def planned(want: DesiredModel | None, replica: ObservedReplica, held: dict[str, int]) -> tuple[object, ...]:
    known: dict[str, Any] = {
        "preflights": {PreflightKey("m", "new"): PreflightResult(True, NOW)},
        "loaded_once": frozenset("m"),
    }
    state = ObservedState(NOW, (replica,), hosts=(Host(gpus=(CARD,)),), gpu_use={replica.name: held}, **known)
    return plan(DesiredState(1, {"m": want} if want is not None else {}), state, NOW).actions


def test_a_replica_that_does_not_use_its_gpu_is_stopped_as_one_that_never_served() -> None:
    [stop] = planned(WANT, READY, {"GPU-a": 3})
    reason = explain_unused_gpus(READY, {"GPU-a": 3})
    assert reason is not None
    assert stop == Stop(READY.id, "m-0", reason, Verdict(reason), served=False)
    for held in ({"GPU-a": 900}, {}):
        assert planned(WANT, READY, held) == (), "it uses its GPU, or nothing is known of that"


@pytest.mark.parametrize(
    ("want", "replica"),
    [
        (WANT, replace(READY, health=Health.FAILING)),
        (WANT, replace(READY, id=replace(READY.id, spec_hash="old"))),
        (replace(WANT, backend="stub", definition=StubDefinition(backend="stub", gpus=1)), READY),
        (replace(WANT, replicas=0), READY),
        (WANT, replace(READY, draining=Draining(NOW - 1, False))),
        (None, READY),
    ],
    ids=["not ready", "edited", "a stand-in computes nothing", "unloaded", "leaving", "not declared"],
)
def test_only_what_serves_as_declared_is_judged_by_it(want: DesiredModel | None, replica: ObservedReplica) -> None:
    stops = [each for each in planned(want, replica, {"GPU-a": 3}) if isinstance(each, Stop)]
    assert all(each.failure is None for each in stops)


def test_growth_of_main_memory_says_nothing_of_a_gpu_that_uses_it() -> None:
    spark = replace(CARD, is_unified=True)
    assert measured(growth={"GPU-a": 3}, card=spark, known=False) == {}
    assert measured(own(3), growth={"GPU-a": 500}, card=spark) == {"GPU-a": 3}
