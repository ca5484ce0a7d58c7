"""Where a replica goes, claim by claim, and what is said where there is no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.engines.stub import StubDefinition
from controller.hosts import HOST, Gpu, GpuProcess, UnreadGpu
from controller.planning.placement import (
    RELEASE_S,
    ClaimLedger,
    NoRoom,
    Placement,
    explain_leaving,
    explain_never_fits,
    find_shortage,
    holders_of,
    place_replica,
    place_sleeper,
    requirement_of,
)
from controller.state import (
    DesiredModel,
    Health,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    ReplicaId,
    Requirement,
    Sleep,
    Statement,
)
from tests.support.world import change_host, observe

NOW = 1_000.0
ONE = DesiredModel("m", StubDefinition(backend="stub"), "stub", "h", 1, Statement("file", 0.0, ""), gpu_count=1)
A, B = Gpu("A", 0, "x", 1_000), Gpu("B", 1, "x", 1_000)


def replica(name: str, claims: dict[str, int], **fields: Any) -> ObservedReplica:
    known: dict[str, Any] = {"started_at": 1.0, "health": Health.READY, "ready_since": 2.0, "phase": Phase.RUNNING}
    known |= fields
    return ObservedReplica(ReplicaId("m", 0, "h", 1), name, known.pop("phase"), 0.0, claims=claims, **known)


def seen(*gpus: Gpu, **fields: Any) -> ObservedState:
    return observe(NOW, **({"gpus": gpus} | fields))


def place(want: DesiredModel, observed: ObservedState, **ledger: Any) -> Placement | NoRoom:
    return place_replica(want, observed, ClaimLedger(**ledger))


def refused(placed: Placement | NoRoom) -> NoRoom:
    assert isinstance(placed, NoRoom)
    return placed


def test_what_counts_as_claimed_and_what_as_busy() -> None:
    ready, loading = replica("a", {"A": 10, HOST: 5}), replica("b", {"B": 20, HOST: 5}, ready_since=None)
    ledger = ClaimLedger.of(seen(replicas=(ready, loading)))
    models = {"A": {"m"}, "B": {"m"}, HOST: {"m"}}
    assert ledger == ClaimLedger({"A": 10, HOST: 10, "B": 20}, {"B": "b"}, {}, models)
    stops = PendingOp(OpKind.STOP, ready.id)
    assert ClaimLedger.of(seen(replicas=(ready,), pending={"a": stops})).busy_replicas == {"A": "a"}
    for phase in (Phase.EXITED, Phase.CREATED):
        gone = replace(ready, phase=phase)
        assert ClaimLedger.of(seen(replicas=(gone, loading))).claimed_mib == {"B": 20, HOST: 5}, (
            "and those after it count"
        )
    created = replace(ready, phase=Phase.CREATED)
    assert ClaimLedger.of(seen(replicas=(created,), pending={"a": stops})).claimed_mib == {"A": 10, HOST: 5}


def test_what_is_about_to_come_is_claimed_and_counted_once() -> None:
    comes = PendingOp(OpKind.START, ReplicaId("n", 0, "h", 1), {"A": 30, HOST: 5})
    ledger = ClaimLedger.of(seen(pending={"n-0": comes}))
    models = {"A": {"n"}, HOST: {"n"}}
    assert ledger == ClaimLedger({"A": 30, HOST: 5}, {"A": "n-0"}, {}, models)
    assert ClaimLedger.of(seen(pending={"n-0": replace(comes, kind=OpKind.STOP)})) == ClaimLedger()
    there = replica("n-0", {"A": 30})
    assert ClaimLedger.of(seen(replicas=(there,), pending={"n-0": comes})).claimed_mib == {"A": 30}


def test_of_two_that_load_on_one_gpu_the_same_is_named_in_whatever_order_they_were_seen() -> None:
    two = (replica("b", {"A": 1}, ready_since=None), replica("a", {"A": 1}, ready_since=None))
    for order in (two, two[::-1]):
        ledger = ClaimLedger.of(seen(replicas=order))
        assert ledger.busy_replicas == {"A": "b"}
        assert ledger.find_busy_neighbour(two[1]) == "b"
        assert ledger.find_busy_neighbour(two[0]) is None
    assert ledger.find_busy_neighbour(replica("c", {"B": 1})) is None
    assert ledger.find_busy_neighbour(replica("c", {"B": 1, "A": 1})) == "b"


def test_as_if_some_were_gone() -> None:
    ledger = ClaimLedger({"A": 100, HOST: 50}, {"A": "x"}, {"A": 1}, {"A": {"m"}})
    without = ledger.copy_without([{"A": 30}, {"A": 20, "B": 5}])
    assert without == ClaimLedger({"A": 50, HOST: 50, "B": -5}, {"A": "x"}, {"A": 51, "B": 5}, {"A": {"m"}})
    without.add_claims({"A": 1}, model="n", busy_with="y")
    assert ledger == ClaimLedger({"A": 100, HOST: 50}, {"A": "x"}, {"A": 1}, {"A": {"m"}}), "the first one is as it was"


@pytest.mark.parametrize(
    ("processes", "used", "released"),
    [
        (None, 100, 60),
        (None, 300, 60 + 300 - 100),
        ((GpuProcess(1, 70, "e", "a"), GpuProcess(2, 7, "e", "a"), GpuProcess(3, 50, "e", "other")), 300, 77),
        ((GpuProcess(1, None, "e", "a"),), 300, 260),
        ((GpuProcess(1, 70, "e", "other"),), 300, 260),
    ],
)
def test_what_a_gpu_gets_back_of_one_that_goes(
    processes: tuple[GpuProcess, ...] | None, used: int, released: int
) -> None:
    goes = replica("a", {"A": 60, HOST: 10})
    observed = seen(B, replace(A, used_mib=used, processes=processes))
    ledger = ClaimLedger({"A": 100, HOST: 30}).copy_without_replicas([goes], observed)
    assert (ledger.claimed_mib, ledger.released_mib) == ({"A": 40, HOST: 20}, {"A": released, HOST: 10})


def test_who_is_taken_away_leaves_no_more_and_the_others_do() -> None:
    first, second = replica("a", {"A": 60}), replica("b", {"A": 40})
    ledger = ClaimLedger({"A": 100}, leaving=(first, second))
    assert ledger.copy_without_replicas([first], seen(A)).leaving == (second,)
    assert ledger.leaving == (first, second)


def test_the_words_for_who_leaves() -> None:
    one, other = replica("a", {}), replace(replica("b", {}), id=ReplicaId("n", 0, "h", 1))
    assert explain_leaving([one, one]) == "waiting for room: m is ending"
    assert explain_leaving([other, one]) == "waiting for room: m and n are ending"
    assert explain_leaving([]) == "waiting for room: others are ending"


def test_of_one_that_is_being_stopped_more_is_released_than_its_processes_still_tell() -> None:
    goes = replica("a", {"A": 60})
    stop = PendingOp(OpKind.STOP, goes.id, goes.claims, NOW - 1)
    for kind, processes, used, released in (
        (OpKind.STOP, (GpuProcess(1, 20, "e", "a"),), 75, 60),
        (OpKind.STOP, (GpuProcess(1, 70, "e", "a"),), 75, 70),
        (OpKind.STOP, (GpuProcess(1, 20, "e", "a"), GpuProcess(2, 40, "e", "other")), 75, 35),
        (OpKind.STOP, (GpuProcess(1, 20, "e", "a"), GpuProcess(2, None, "e")), 75, 60),
        (OpKind.START, (GpuProcess(1, 20, "e", "a"),), 75, 20),
    ):
        gpu = replace(A, used_mib=used, processes=processes)
        observed = replace(seen(gpu), pending={"a": replace(stop, kind=kind)})
        ledger = ClaimLedger({"A": 60}).copy_without_replicas([goes], observed)
        assert ledger.released_mib == {"A": released}, (kind, processes)


def test_two_that_go_from_gpus_that_cannot_be_read() -> None:
    both = [replica("a", {"A": 60}), replica("b", {"A": 30, "B": 5})]
    ledger = ClaimLedger({"A": 100}).copy_without_replicas(both, seen(gpus=None))
    assert (ledger.claimed_mib, ledger.released_mib) == ({"A": 10, "B": -5}, {"A": 90, "B": 5})


def test_gpus_that_are_not_there() -> None:
    words = "the GPUs cannot be read now, so nothing is placed on them"
    assert place(ONE, seen(gpus=None)) == NoRoom(words, waiting=True)
    assert place(ONE, seen()) == NoRoom("needs 1 GPU, this host has none")
    assert place(replace(ONE, gpu_count=2), seen(A)) == NoRoom("needs 2 GPUs, this host has 1")
    choice = replace(ONE, gpu_choice=("x", "0", "y"), vram_mib=1)
    assert place(choice, seen(A, B)) == NoRoom("this host has no GPU x, y")
    twice = replace(ONE, gpu_count=2, gpu_choice=("0", "A"), vram_mib=10)
    words = "needs 10 MiB on each of 2 GPUs; free: GPU 0 has 1000 of 1000 MiB"
    words += ": a shorter context, a smaller cache type or more GPUs (`gpus`) would make it fit"
    assert place(twice, seen(A, B)) == NoRoom(words)


def test_a_gpu_that_cannot_be_read_is_named_with_its_reason() -> None:
    lost = UnreadGpu(1, "it has fallen off the bus", "B", "0000:0a:00.0")
    left_out = "GPU 1 (B, PCI 0000:0a:00.0) is left out: it has fallen off the bus"
    nameless = UnreadGpu(2, "Unknown Error")
    want = replace(ONE, vram_mib=100)
    host = seen(A, unread_gpus=(lost, nameless))
    assert place(want, host) == Placement({"A": 100}), "the others are used"
    for choice in ("1", "B", "1:3"):
        named = place(replace(want, gpu_choice=(choice,)), host)
        assert named == NoRoom(f"not every GPU that `gpus` names can be used; {left_out}")
    both = place(replace(want, gpu_choice=("1", "7", "2")), host)
    assert both == NoRoom(f"this host has no GPU 7; {left_out}; GPU 2 is left out: Unknown Error")
    words = f"needs 2 GPUs, this host has 1; {left_out}; GPU 2 is left out: Unknown Error"
    assert place(replace(want, gpu_count=2), host) == NoRoom(words)
    full = refused(place(want, host, claimed_mib={"A": 950}))
    assert full.reason.startswith("needs 100 MiB on each of 1 GPU; free: GPU 0 has 50 of 1000 MiB; GPU 1 (B, PCI")
    elsewhere = place(replace(want, gpu_choice=("0",)), host, claimed_mib={"A": 950})
    assert elsewhere == NoRoom("needs 100 MiB on each of 1 GPU; free: GPU 0 has 50 of 1000 MiB"), "it is not for it"
    assert place(want, host, busy_replicas={"A": "x"}) == NoRoom("GPU 0 is busy with x", waiting=True)


def test_claims_on_a_gpu_that_cannot_be_read_stay() -> None:
    serves = replica("a", {"B": 900, "A": 100})
    ledger = ClaimLedger.of(seen(A, replicas=(serves,), unread_gpus=(UnreadGpu(1, "lost", "B"),)))
    assert ledger.claimed_mib == {"B": 900, "A": 100}
    back = seen(A, B, replicas=(serves,))
    want = replace(ONE, vram_mib=200, gpu_choice=("B",))
    assert isinstance(place_replica(want, back, ClaimLedger.of(back)), NoRoom)


def test_the_best_of_several_gpus() -> None:
    want = replace(ONE, vram_mib=100)
    c = Gpu("C", 2, "x", 500)
    assert place(want, seen(A, B, c)) == Placement({"C": 100}), "the least room that is enough"
    assert place(want, seen(A, B, c), busy_replicas={"C": "x"}) == Placement({"A": 100}), "nothing loads there"
    assert place(want, seen(A, B, c), models_by_gpu={"C": {"m"}, "A": {"m"}}) == Placement({"B": 100})
    assert place(want, seen(B, A)) == Placement({"A": 100}), "of equals the first"
    assert place(replace(want, gpu_choice=("1",)), seen(A, B)) == Placement({"B": 100})
    assert place(want, seen(A, B), claimed_mib={"B": 1}) == Placement({"B": 100})
    assert place(want, seen(A, B), claimed_mib={"B": 900}) == Placement({"B": 100})
    assert place(want, seen(A, B), claimed_mib={"B": 901}) == Placement({"A": 100})
    two = place(replace(want, gpu_count=2), seen(B, c, A))
    assert two == Placement({"A": 100, "C": 100})
    assert isinstance(two, Placement)
    assert list(two.claims) == ["A", "C"], "in the order of their indices"
    busy = place(replace(want, gpu_count=2), seen(A, B), busy_replicas={"B": "x", HOST: "y"})
    assert busy == NoRoom("GPU 1 is busy with x", waiting=True)


def test_a_whole_gpu_is_one_where_nobody_else_is() -> None:
    assert place(ONE, seen(A)) == Placement({"A": 1_000})
    assert place(ONE, seen(replace(A, used_mib=100))) == Placement({"A": 1_000}), "a tenth may be in use"
    words = "needs 1 GPU of its own, for what it takes is not known (`vram_mib`); free: GPU 0 has 899 of 1000 MiB"
    held = "; memory that nobody claims is held by GPU 0: 101 MiB, by processes that the driver does not name here"
    assert place(ONE, seen(replace(A, used_mib=101))) == NoRoom(words + held)
    assert place(ONE, seen(A), claimed_mib={"A": 1}) == NoRoom(words.replace("899", "999"))
    assert place(ONE, seen(replace(A, used_mib=101)), released_mib={"A": 1}) == Placement({"A": 1_000})
    assert place(ONE, seen(replace(A, used_mib=101)), released_mib={"A": 500}) == Placement({"A": 1_000})


def test_what_is_released_is_no_more_than_what_was_used() -> None:
    want = replace(ONE, vram_mib=1_000)
    assert place(want, seen(replace(A, used_mib=5)), claimed_mib={"A": 0}, released_mib={"A": 50}) == Placement(
        {"A": 1_000}
    )
    over = place(replace(want, vram_mib=1_001), seen(replace(A, used_mib=5)), released_mib={"A": 50})
    words = "needs 1001 MiB on each of 1 GPU; free: GPU 0 has 1000 of 1000 MiB"
    words += ": lower `vram_mib`, or take a smaller model"
    assert over == NoRoom(words)


def test_a_model_needs_what_was_observed_or_declared() -> None:
    known = Requirement(per_gpu_mib=10, host_mib=20, gpu_share=0.5)
    observed = seen(requirements={"m": known})
    assert requirement_of(ONE, observed) == known
    assert requirement_of(replace(ONE, name="other"), observed) == Requirement()
    assert requirement_of(replace(ONE, vram_mib=5), observed) == Requirement(5, 20, 0.5), (
        "the share is taken all the same"
    )
    assert requirement_of(replace(ONE, memory_mib=7), observed) == Requirement(10, 7, 0.5)
    assert requirement_of(replace(ONE, memory_mib=7, vram_mib=5), observed) == Requirement(5, 7, 0.5)


SMALLER = ": lower `memory_mib`, or take a smaller model"


@pytest.mark.parametrize(
    ("need", "claimed", "words"),
    [
        (60, 40, None),
        (100, 0, None),
        (61, 40, "needs 61 MiB of main memory; free: 60 of the 100 MiB that engines may take"),
        (100, 150, "needs 100 MiB of main memory; free: 0 of the 100 MiB that engines may take"),
        (101, 0, f"needs 101 MiB of main memory; free: 100 of the 100 MiB that engines may take{SMALLER}"),
    ],
)
def test_main_memory_of_engines_without_gpus_and_with(need: int, claimed: int, words: str | None) -> None:
    ledger: dict[str, Any] = {"claimed_mib": {HOST: claimed} if claimed else {}}

    def expected(**claims: int) -> Placement | NoRoom:
        return Placement(claims | {HOST: need}) if words is None else NoRoom(words)

    host = seen(A, host_mib=100)
    assert place(replace(ONE, gpu_count=0, memory_mib=need), host, **ledger) == expected()
    assert place(replace(ONE, vram_mib=10, memory_mib=need), host, **ledger) == expected(A=10)
    both = seen(A, B, host_mib=100, requirements={"m": Requirement(per_gpu_mib=10, host_mib=need)})
    if words is not None:
        words = words.replace("lower `memory_mib`", "declare a smaller context")
    assert place(replace(ONE, gpu_count=2), both, **ledger) == expected(A=10, B=10)
    busy = place(ONE, both, busy_replicas={"A": "x", "B": "x"}, **ledger)
    waits = NoRoom("GPU 0 is busy with x", waiting=True)
    assert busy == (waits if words is None else NoRoom(words)), "a wait for the GPU frees no main memory"


def test_what_would_help_is_a_setting_only_where_one_is_set_and_what_is_declared_where_it_is() -> None:
    large, limited = seen(host_mib=100), seen(host_mib=100, is_host_limited=True)
    declared = replace(ONE, gpu_count=0, memory_mib=101)
    raising = ": lower `memory_mib`, raise ROUNDHOUSE_ENGINES_MEMORY_MIB, or take a smaller model"
    assert refused(place(declared, large)).reason.endswith(SMALLER)
    assert refused(place(declared, limited)).reason.endswith(raising)
    on_gpu = refused(place(replace(ONE, vram_mib=1_001), seen(A)))
    assert on_gpu.reason.endswith("GPU 0 has 1000 of 1000 MiB: lower `vram_mib`, or take a smaller model")


def test_an_engine_with_a_gpu_and_an_unknown_need_of_main_memory_claims_none() -> None:
    full = ClaimLedger({HOST: 100})
    assert place_replica(ONE, seen(A, host_mib=100), full) == Placement({"A": 1_000})
    known = seen(A, host_mib=100, requirements={"m": Requirement(per_gpu_mib=10)})
    assert place_replica(ONE, known, full) == Placement({"A": 10})
    unbounded = seen(A, requirements={"m": Requirement(per_gpu_mib=10, host_mib=20)})
    assert place_replica(ONE, unbounded, full) == Placement({"A": 10, HOST: 20})
    assert place_replica(replace(ONE, gpu_count=0), seen(host_mib=100), full) == Placement({}), "nor one without"


def test_a_share_is_one_of_each_gpu_that_it_is_taken_of() -> None:
    small, large = Gpu("B", 1, "x", 24_000), Gpu("A", 0, "x", 80_000)
    full = replace(large, used_mib=70_000)

    def placed(*gpus: Gpu, count: int = 1, mib: int = 5_000) -> Placement | NoRoom:
        share = Requirement(per_gpu_mib=mib, gpu_share=0.9)
        return place(replace(ONE, gpu_count=count), seen(*gpus, requirements={"m": share}))

    assert placed(full, small) == Placement({"B": 21_600})
    assert placed(large, small, count=2) == Placement({"A": 72_000, "B": 21_600})
    assert placed(large, small, mib=30_000) == Placement({"A": 72_000})
    short = refused(placed(full))
    assert short.reason.startswith("needs 72000 MiB, 90 % of the largest on each of 1 GPU; free: GPU 0 has 10000 of")


def test_with_unified_memory_claims_on_the_gpu_and_of_main_memory_are_one_sum() -> None:
    spark = seen(A, host_mib=1_000, unified_gpus=frozenset({"A"}))
    on_gpu, on_host = replace(ONE, vram_mib=300), replace(ONE, gpu_count=0, memory_mib=300)
    both = replace(spark, replicas=(replica("a", {"A": 400}), replica("b", {HOST: 301})))
    ledger = ClaimLedger.of(both)
    words = "needs 300 MiB on each of 1 GPU; free: GPU 0 has 299 of 1000 MiB"
    assert place_replica(on_gpu, both, ledger) == NoRoom(words)
    words = "needs 300 MiB of main memory; free: 299 of the 1000 MiB that engines may take"
    assert place_replica(on_host, both, ledger) == NoRoom(words)
    less = replace(both, replicas=(both.replicas[0], replica("b", {HOST: 300})))
    assert place_replica(on_gpu, less, ClaimLedger.of(less)) == Placement({"A": 300})
    assert place_replica(on_host, less, ClaimLedger.of(less)) == Placement({HOST: 300})
    assert isinstance(place_replica(ONE, less, ClaimLedger.of(less)), NoRoom), "for itself alone, it is too late"
    assert place_replica(ONE, spark, ClaimLedger.of(spark)) == Placement({"A": 1_000})
    bounded = change_host(less, host_mib=900)
    assert isinstance(place_replica(on_host, bounded, ClaimLedger.of(bounded)), NoRoom)
    discrete = change_host(both, unified_gpus=frozenset())
    assert place_replica(on_gpu, discrete, ClaimLedger.of(discrete)) == Placement({"A": 300})
    assert place_replica(on_host, discrete, ClaimLedger.of(discrete)) == Placement({HOST: 300})


def test_claims_on_unified_memory_count_while_its_gpu_cannot_be_read() -> None:
    blind = seen(gpus=None, host_mib=1_000, unified_gpus=frozenset({"A"}), replicas=(replica("a", {"A": 800}),))
    want = replace(ONE, gpu_count=0, memory_mib=300)
    words = "needs 300 MiB of main memory; free: 200 of the 1000 MiB that engines may take"
    assert place_replica(want, blind, ClaimLedger.of(blind)) == NoRoom(words)


def test_with_unified_memory_a_replicas_own_main_memory_counts_beside_its_gpu() -> None:
    needs = {"m": Requirement(per_gpu_mib=600, host_mib=400)}
    spark = seen(A, host_mib=1_000, unified_gpus=frozenset({"A"}), requirements=needs)
    assert place_replica(ONE, spark, ClaimLedger.of(spark)) == Placement({"A": 600, HOST: 400})
    more = replace(spark, requirements={"m": Requirement(per_gpu_mib=601, host_mib=400)})
    words = "needs 1001 MiB on each of 1 GPU; free: GPU 0 has 1000 of 1000 MiB"
    found = refused(place_replica(ONE, more, ClaimLedger.of(more)))
    assert found.reason.startswith(words)
    unknown = replace(spark, requirements={"m": Requirement(host_mib=400)})
    assert place_replica(ONE, unknown, ClaimLedger.of(unknown)) == Placement({"A": 600, HOST: 400}), "all of it"


def test_what_leaves_unified_memory_makes_room_for_both() -> None:
    used = replace(A, used_mib=950)
    goes = (replica("a", {"A": 400}), replica("b", {HOST: 500}))
    spark = seen(used, host_mib=1_000, unified_gpus=frozenset({"A"}), replicas=goes)
    ledger = ClaimLedger.of(spark)
    for one, room in ((goes[0], 450), (goes[1], 550)):
        without = ledger.copy_without_replicas([one], spark)
        fits, exceeds = (replace(ONE, vram_mib=mib) for mib in (room, room + 1))
        assert place_replica(fits, spark, without) == Placement({"A": room}), "50 MiB are somebody else's"
        assert isinstance(place_replica(exceeds, spark, without), NoRoom)
    told = replace(used, processes=(GpuProcess(1, 350, "e", "a"),))
    assert ledger.copy_without_replicas([goes[0]], change_host(spark, gpus=(told,))).released_mib == {"A": 350}


def test_room_that_others_hold_is_waited_for_a_while_and_then_named() -> None:
    want = replace(ONE, vram_mib=800)
    holder = GpuProcess(7, 500, "python")
    used = replace(A, used_mib=500, processes=(holder,))
    words = "needs 800 MiB on each of 1 GPU; free: GPU 0 has 500 of 1000 MiB; memory that nobody claims is held by "
    words += "GPU 0: process 7 (python), not of this Roundhouse: 500 MiB"
    for left_s, waiting in ((RELEASE_S - 1, True), (RELEASE_S, False), (None, False)):
        left_at = {} if left_s is None else {"A": NOW - left_s}
        assert place(want, seen(used, left_at=left_at)) == NoRoom(words, waiting=waiting)
    claimed = refused(place(want, seen(used, left_at={"A": NOW}), claimed_mib={"A": 500}))
    assert not claimed.waiting, "others have claimed it"
    nameless = replace(A, used_mib=500, processes=None)
    made = refused(place(replace(want, gpu_count=2), seen(used, replace(nameless, uuid="B", index=1))))
    assert made.reason.startswith("needs 800 MiB on each of 2 GPUs; free: GPU 0 has 500 of 1000 MiB, GPU 1 has 500 of")
    assert "GPU 0: process 7 (python), not of this Roundhouse: 500 MiB" in made.reason
    both = (used, replace(used, uuid="B", index=1))
    late = {"A": NOW - RELEASE_S, "B": NOW}
    assert place(replace(want, gpu_count=2), seen(*both, left_at=late)) == NoRoom(
        words.replace("of 1 GPU", "of 2 GPUs").replace(
            "GPU 0 has 500 of 1000 MiB", "GPU 0 has 500 of 1000 MiB, GPU 1 has 500 of 1000 MiB"
        )
        + "; GPU 1: process 7 (python), not of this Roundhouse: 500 MiB",
        waiting=False,  # what is released on the one makes no room on the other
    )


def test_what_would_make_it_fit_is_said_only_where_it_never_will() -> None:
    hint = "take a smaller model"
    small = Gpu("C", 2, "x", 100)
    for gpus, expected in (((A, small), True), ((A, B), False)):
        full = ClaimLedger({gpu.uuid: gpu.total_mib for gpu in gpus})
        made = refused(place_replica(replace(ONE, gpu_count=2, vram_mib=1_000), seen(*gpus), full))
        assert (hint in made.reason) is expected
        assert "GPU 0 has 0 of 1000 MiB" in made.reason
        assert not made.waiting


def test_what_is_in_use_beyond_the_claims_is_named_unless_it_is_of_one_that_runs() -> None:
    reason = "needs 800 MiB on each of 1 GPU; free: GPU 0 has 100 of 1000 MiB"
    want, runs = replace(ONE, vram_mib=800), replica("run", {"A": 100})
    ledger = ClaimLedger({"A": 100})
    own = replace(A, used_mib=900, processes=(GpuProcess(1, 900, "e", "run"),))
    assert place_replica(want, seen(own, replicas=(runs,)), ledger) == NoRoom(reason), "it holds more than it claims"
    gone = seen(own, replicas=(replace(runs, phase=Phase.EXITED),))
    held = "; memory that nobody claims is held by GPU 0: "
    assert place_replica(want, gone, ledger) == NoRoom(f"{reason}{held}process 1 (e), of run: 900 MiB")
    unnamed = seen(replace(A, used_mib=900), replicas=(runs,))
    words = "800 MiB, by processes that the driver does not name here"
    assert place_replica(want, unnamed, ledger) == NoRoom(f"{reason}{held}{words}")
    exactly = refused(place(replace(want, vram_mib=1_000), seen(replace(A, used_mib=900))))
    assert "held by GPU 0: 900 MiB" in exactly.reason


# Replicas on MIG instances, and who holds a GPU's memory, in words


INSTANCES = (
    Gpu("MIG-a", 0, "NVIDIA H100 MIG 1g.10gb", 9_984, 20, mig=0),
    Gpu("MIG-b", 0, "NVIDIA H100 MIG 3g.40gb", 40_448, 44, mig=1),
)
WHOLE = (Gpu("GPU-c", 1, "NVIDIA H100", 81_559, 4), Gpu("GPU-d", 2, "NVIDIA H100", 81_559, 4))


def placed(gpus: tuple[Gpu, ...], count: int = 1, mib: int = 5_000, *choice: str) -> Placement | NoRoom:
    return place(replace(ONE, gpu_count=count, gpu_choice=choice, vram_mib=mib), seen(*gpus))


def test_an_instance_is_a_gpu_of_its_own_size_chosen_by_its_place_or_its_uuid() -> None:
    for mib, uuid in ((5_000, "MIG-a"), (20_000, "MIG-b"), (50_000, "GPU-c")):
        assert placed((*INSTANCES, *WHOLE), 1, mib) == Placement({uuid: mib})
    for name in ("0:1", "MIG-b"):
        assert placed(INSTANCES, 1, 5_000, name) == Placement({"MIG-b": 5_000})
    assert placed(INSTANCES, 1, 5_000, "0") == NoRoom("this host has no GPU 0")
    found = refused(placed(INSTANCES, 1, 50_000))
    assert "GPU 0:0 has 9964 of 9984 MiB, GPU 0:1 has 40404 of 40448 MiB" in found.reason


def test_several_gpus_are_wholes() -> None:
    assert placed((*INSTANCES, *WHOLE), 2) == Placement({"GPU-c": 5_000, "GPU-d": 5_000})
    reason = "needs 2 GPUs as wholes, and those here are MIG instances"
    assert placed(INSTANCES, 2) == NoRoom(reason)
    assert placed((*INSTANCES, *WHOLE), 2, 5_000, "MIG-a", "MIG-b") == NoRoom(reason)


def gpu(*processes: GpuProcess) -> Gpu:
    return Gpu("GPU-a", 0, "fake", 80_000, 31_000, processes=processes)


def test_processes_that_stay_are_not_named_and_strangers_are_with_what_is_known() -> None:
    ours = GpuProcess(7, 30_000, "python3", "rh-i-m-0-h-1")
    assert holders_of(gpu(), (), expected_mib=0) is None
    assert holders_of(gpu(ours), ["rh-i-m-0-h-1"], expected_mib=0) is None
    assert holders_of(gpu(ours), [], expected_mib=0) == "process 7 (python3), of rh-i-m-0-h-1: 30000 MiB"

    strangers = (GpuProcess(8, 500, "Xorg"), GpuProcess(9, None))
    words = "process 8 (Xorg), not of this Roundhouse: 500 MiB; process 9, not of this Roundhouse: an unknown part"
    assert holders_of(gpu(*strangers), ["rh-i-m-0-h-1"], expected_mib=0) == words


def test_of_many_processes_three_are_named_and_where_there_is_no_name_the_memory_is() -> None:
    crowd = [GpuProcess(pid, 100 - pid) for pid in range(10, 16)]
    words = holders_of(gpu(*crowd), (), expected_mib=0)
    assert words is not None
    assert words.count("process") == 3
    assert words.endswith("; 3 more")
    assert "more" not in (holders_of(gpu(*crowd[:3]), (), expected_mib=0) or "")

    silent = Gpu("GPU-a", 0, "fake", 80_000, 31_000)
    assert holders_of(silent, (), expected_mib=30_000) == "1000 MiB, by processes that the driver does not name here"
    assert holders_of(silent, (), expected_mib=30_999) == "1 MiB, by processes that the driver does not name here"
    assert holders_of(silent, (), expected_mib=31_000) is None


@pytest.mark.parametrize(
    ("want", "host", "reason"),
    [
        ({"gpu_count": 0}, {}, None),
        ({"gpu_count": 0, "memory_mib": 900}, {}, None),
        (
            {"gpu_count": 0, "memory_mib": 901},
            {},
            "needs 901 MiB of main memory; free: 900 of the 900 MiB that engines may take: lower `memory_mib`, or take "
            "a smaller model",
        ),
        (
            {"gpu_count": 0},
            {"requirements": {"m": Requirement(None, 901)}, "is_host_limited": True},
            "needs 901 MiB of main memory; free: 900 of the 900 MiB that engines may take: declare a smaller context, "
            "raise ROUNDHOUSE_ENGINES_MEMORY_MIB, or take a smaller model",
        ),
        ({"gpu_count": 0, "memory_mib": 901}, {"host_mib": None}, None),
        ({}, {"requirements": {"m": Requirement(1000, 900)}}, None),
        (
            {},
            {"requirements": {"m": Requirement(1001, 1)}},
            "needs 1001 MiB on each of 1 GPU; free: GPU 0 has 1000 of 1000 MiB, GPU 1 has 1000 of 1000 MiB: a shorter "
            "context, a smaller cache type or more GPUs (`gpus`) would make it fit",
        ),
        (
            {"vram_mib": 1001, "gpu_choice": ("1",)},
            {},
            "needs 1001 MiB on each of 1 GPU; free: GPU 1 has 1000 of 1000 MiB: lower `vram_mib`, or take a smaller "
            "model",
        ),
        ({"vram_mib": 1001}, {"gpus": None}, None),
        ({"vram_mib": 1001}, {"gpus": ()}, None),
        ({"vram_mib": 1001}, {"unread_gpus": (UnreadGpu(2, "it is lost"),)}, None),
        (
            {"vram_mib": 600},
            {"unified_gpus": frozenset("AB"), "requirements": {"m": Requirement(None, 500)}},
            "needs 1100 MiB on each of 1 GPU; free: GPU 0 has 1000 of 1000 MiB, GPU 1 has 1000 of 1000 MiB: lower "
            "`vram_mib`, or take a smaller model",
        ),
    ],
)
def test_what_never_has_room_here_is_said_whatever_runs(
    want: dict[str, Any], host: dict[str, Any], reason: str | None
) -> None:
    full = [replace(gpu, used_mib=1000, processes=(GpuProcess(7, 1000, "other"),)) for gpu in (A, B)]
    runs = replica("a", {"A": 1000, HOST: 900})
    observed = seen(*full, replicas=(runs,), **{"host_mib": 900, **host}) if "gpus" not in host else seen(**host)
    assert explain_never_fits(replace(ONE, **want), observed) == reason


# Waking

AWAKE, ASLEEP = {"A": 600, HOST: 50}, {"A": 20, HOST: 300}
SLEEPER = replica("s", ASLEEP, sleep=Sleep(ASLEEP, AWAKE, since=5.0))


def wake(observed: ObservedState, **ledger: Any) -> Placement | NoRoom:
    """Where `SLEEPER` is placed, whose claims are in the ledger, beside these others."""
    known = ClaimLedger.of(replace(observed, replicas=(SLEEPER, *observed.replicas)))
    for name, value in ledger.items():
        setattr(known, name, value)
    return place_sleeper(SLEEPER, observed, known)


def test_a_sleeper_is_placed_where_its_claims_awake_have_room_in_the_place_of_those_asleep() -> None:
    assert wake(seen(A, host_mib=50)) == Placement(AWAKE, SLEEPER)
    assert wake(seen(A, host_mib=49)) == NoRoom("needs 50 MiB of main memory; free: 49 of 49 MiB")
    beside = replica("b", {"A": 400})
    assert wake(seen(A, replicas=(beside,))) == Placement(AWAKE, SLEEPER)
    beside = replica("b", {"A": 401})
    assert wake(seen(A, replicas=(beside,))) == NoRoom("needs 600 MiB; free: GPU 0 has 599 of 1000 MiB")


def test_a_sleeper_waits_for_a_gpu_that_is_busy_or_not_read_or_not_released() -> None:
    assert wake(seen(A), busy_replicas={"A": "x"}) == NoRoom("its GPU is busy with x", waiting=True)
    assert wake(seen(A), busy_replicas={"B": "x"}) == Placement(AWAKE, SLEEPER)
    assert wake(seen(A), busy_replicas={"A": "x"}, waits_for_busy=False) == Placement(AWAKE, SLEEPER)
    unread = "a GPU on which it sleeps cannot be read"
    assert wake(seen(A, gpus=None)) == NoRoom(unread, waiting=True)
    assert wake(seen(B)) == NoRoom(unread), "it is gone, and others are read"
    held = replace(A, used_mib=700)
    shortage = "needs 600 MiB; free: GPU 0 has 320 of 1000 MiB"
    # Of what is in use, 20 MiB count as its own, or all where the driver does not tell whose they are.
    held = replace(held, processes=(GpuProcess(1, 20, "vllm", "s"), GpuProcess(2, 680, "vllm", "gone")))
    for left_s, waits in ((RELEASE_S - 1, True), (RELEASE_S, False)):
        found = refused(wake(seen(held, left_at={"A": NOW - left_s})))
        assert (found, found.is_releasing) == (NoRoom(shortage, waiting=waits), waits)


def test_on_a_gpu_that_shares_main_memory_both_claims_need_room_together() -> None:
    shared = {"A": HOST}
    assert find_shortage(AWAKE, seen(A), ClaimLedger(unified_gpus=shared)) is None
    full = ClaimLedger({HOST: 351}, unified_gpus=shared)
    assert find_shortage(AWAKE, seen(A), full) == "needs 650 MiB; free: GPU 0 has 649 of 1000 MiB"
    assert find_shortage(AWAKE, seen(A), ClaimLedger({HOST: 351})) is None
    assert find_shortage({HOST: 5}, seen(gpus=None, host_mib=5), ClaimLedger()) is None


def test_a_wake_is_booked_in_the_place_of_the_sleep_and_keeps_its_gpu_busy() -> None:
    ledger = ClaimLedger.of(seen(A, replicas=(SLEEPER,)))
    assert (ledger.claimed_mib, ledger.sleepers, ledger.busy_replicas) == (ASLEEP, {"s": SLEEPER}, {})
    for _ in range(2):
        ledger.book_wake(SLEEPER, AWAKE)
        assert (ledger.sleepers, ledger.busy_replicas) == ({}, {"A": "s"})
    assert ledger.claimed_mib == {"A": 1_200, HOST: 100}, "one that is no sleeper any more gives nothing back"


@pytest.mark.parametrize("kind", [OpKind.SLEEP, OpKind.WAKE])
def test_while_it_falls_asleep_or_wakes_its_operation_s_claims_are_booked_and_given_back(kind: OpKind) -> None:
    changing = {"A": 600, HOST: 300}
    observed = seen(A, replicas=(SLEEPER,), pending={"s": PendingOp(kind, SLEEPER.id, changing)})
    ledger = ClaimLedger.of(observed)
    assert (ledger.claimed_mib, ledger.sleepers, ledger.busy_replicas) == (changing, {}, {"A": "s"})
    without = ledger.copy_without_replicas([SLEEPER], observed)
    assert (without.claimed_mib, without.released_mib) == ({"A": 0, HOST: 0}, changing)
