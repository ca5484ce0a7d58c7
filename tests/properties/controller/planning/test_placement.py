"""Replicas onto GPUs, one after the other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engines.stub import StubDefinition
from controller.gpus import Gpu, GpuProcess
from controller.planning.placement import RELEASE_S, ClaimLedger, NoRoom, Placement, place_replica
from controller.state import HOST, DesiredModel, ObservedState, Requirement, Statement
from tests.support.campaign import campaign_count

MODEL = DesiredModel("m", StubDefinition(backend="stub"), "stub", "h", 1, Statement("file", 0.0, ""))
gpu_lists = st.lists(st.integers(100, 2_000), max_size=4).map(
    lambda totals: tuple(Gpu(f"GPU-{i}", i, "fake", total) for i, total in enumerate(totals))
)


def seen(
    gpus: tuple[Gpu, ...] | None, *, host_mib: int | None = None, need: Requirement | None = None
) -> ObservedState:
    """An observation of these GPUs, and of what is known of the one model."""
    return ObservedState(0.0, gpus=gpus, host_mib=host_mib, requirements={"m": need} if need is not None else {})


mib_or_unknown = st.one_of(st.none(), st.integers(1, 1_500))
requests = st.tuples(st.integers(0, 3), mib_or_unknown, mib_or_unknown)


@settings(max_examples=campaign_count(200, 10_000))
@given(gpu_lists, mib_or_unknown, st.lists(requests, max_size=8))
def test_claims_never_exceed_memory_and_whole_gpus_are_shared_with_nobody(
    gpus: tuple[Gpu, ...], host_mib: int | None, wanted: list[tuple[int, int | None, int | None]]
) -> None:
    """Main memory is shared by engines with GPUs and without; those whose need of it is not known claim none."""
    ledger = ClaimLedger()
    whole: set[str] = set()
    for count, vram, need_mib in wanted:
        need = Requirement(host_mib=need_mib)
        model = replace(MODEL, gpu_count=count, vram_mib=vram)
        placed = place_replica(model, seen(gpus, host_mib=host_mib, need=need), ledger)
        if isinstance(placed, NoRoom):
            assert placed.reason
            alone = place_replica(model, seen(gpus, need=need), ledger)
            room_mib = (host_mib or 0) - ledger.claimed_mib.get(HOST, 0)
            assert isinstance(alone, NoRoom) or (need_mib or 0) > room_mib, "for want of main memory, or of a GPU"
            continue
        on_gpus = placed.claims.keys() - {HOST}
        assert len(on_gpus) == count
        assert placed.claims.get(HOST) == need_mib
        assert not whole & on_gpus
        if count and vram is None:
            assert not on_gpus & ledger.claimed_mib.keys()
            whole |= on_gpus
        ledger.add_claims(placed.claims)
    totals = {gpu.uuid: gpu.total_mib for gpu in gpus} | ({} if host_mib is None else {HOST: host_mib})
    assert all(mib <= totals.get(uuid, mib) for uuid, mib in ledger.claimed_mib.items())


@settings(max_examples=campaign_count(200, 10_000))
@given(
    st.integers(100, 2_000),
    st.lists(st.tuples(st.booleans(), st.booleans(), mib_or_unknown, mib_or_unknown), max_size=8),
)
def test_with_unified_memory_all_claims_together_never_exceed_it(
    total: int, wanted: list[tuple[bool, bool, int | None, int | None]]
) -> None:
    """Each wants the GPU or not, can see the GPU or not, and needs so many MiB of the GPU and of main memory."""
    gpus = (Gpu("GPU-0", 0, "NVIDIA GB10", total, is_unified=True),)
    unified = frozenset({"GPU-0"})
    ledger = ClaimLedger.of(replace(seen(gpus), unified_gpus=unified))
    for on_gpu, can_read, vram_mib, memory_mib in wanted:
        observed = replace(seen(gpus if can_read else None, host_mib=total), unified_gpus=unified)
        model = replace(MODEL, gpu_count=int(on_gpu), vram_mib=vram_mib, memory_mib=memory_mib)
        placed = place_replica(model, observed, ledger)
        if isinstance(placed, Placement):
            ledger.add_claims(placed.claims)
        assert sum(ledger.claimed_mib.values()) <= total


def test_best_fit_and_choice_and_turns() -> None:
    gpus = (Gpu("A", 0, "x", 1_000, used_mib=500), Gpu("B", 1, "x", 1_000))
    small = replace(MODEL, gpu_count=1, vram_mib=400)
    assert place_replica(small, seen(gpus), ClaimLedger()) == Placement({"A": 400})
    assert place_replica(replace(small, vram_mib=600), seen(gpus), ClaimLedger()) == Placement({"B": 600})
    assert place_replica(replace(small, gpu_choice=("1",)), seen(gpus), ClaimLedger()) == Placement({"B": 400})
    missing = place_replica(replace(small, gpu_choice=("GPU-x",)), seen(gpus), ClaimLedger())
    assert isinstance(missing, NoRoom)
    assert "no GPU GPU-x" in missing.reason
    busy = place_replica(replace(small, gpu_choice=("A",)), seen(gpus), ClaimLedger(busy_replicas={"A": "rh-other"}))
    assert busy == NoRoom("GPU 0 is busy with rh-other", waiting=True)
    unknown = place_replica(small, seen(None), ClaimLedger())
    assert isinstance(unknown, NoRoom)
    assert unknown.waiting


def test_memory_that_is_not_released_yet_is_not_free() -> None:
    gpu = Gpu("A", 0, "x", 1_000, used_mib=900)
    wanted = replace(MODEL, gpu_count=1, vram_mib=800)
    assert isinstance(place_replica(wanted, seen((gpu,)), ClaimLedger()), NoRoom)
    assert isinstance(place_replica(wanted, seen((replace(gpu, used_mib=10),)), ClaimLedger()), Placement)
    running = ClaimLedger()
    running.add_claims({"A": 900})
    assert isinstance(place_replica(wanted, seen((gpu,)), running.copy_without([{"A": 900}])), Placement)


def test_what_is_known_of_a_need_counts_and_what_is_declared_rules() -> None:
    gpus = (Gpu("A", 0, "x", 1_000), Gpu("B", 1, "x", 2_000))
    one = replace(MODEL, gpu_count=1)
    assert place_replica(one, seen(gpus), ClaimLedger()) == Placement({"A": 1_000})
    assert place_replica(one, seen(gpus, need=Requirement(per_gpu_mib=1_200)), ClaimLedger()) == Placement({"B": 1_200})
    assert place_replica(
        replace(one, vram_mib=300), seen(gpus, need=Requirement(per_gpu_mib=1_200)), ClaimLedger()
    ) == Placement({"A": 300})
    huge = place_replica(one, seen(gpus, need=Requirement(per_gpu_mib=3_000)), ClaimLedger())
    assert isinstance(huge, NoRoom)
    assert "more GPUs (`gpus`) would make it fit" in huge.reason
    assert not huge.waiting


def test_replicas_of_a_model_are_spread_over_gpus() -> None:
    gpus = (Gpu("A", 0, "x", 1_000), Gpu("B", 1, "x", 1_000))
    ledger = ClaimLedger()
    ledger.add_claims({"A": 300}, model="m")
    assert place_replica(replace(MODEL, gpu_count=1, vram_mib=300), seen(gpus), ledger) == Placement({"B": 300})
    other = ClaimLedger()
    other.add_claims({"A": 300}, model="n")
    assert place_replica(replace(MODEL, gpu_count=1, vram_mib=300), seen(gpus), other) == Placement({"A": 300})


def test_engines_without_gpus_share_main_memory() -> None:
    known = replace(MODEL, memory_mib=600)
    assert place_replica(MODEL, seen((), host_mib=100), ClaimLedger()) == Placement({})
    assert place_replica(known, seen((), host_mib=1_000), ClaimLedger()) == Placement({HOST: 600})
    assert place_replica(known, seen(()), ClaimLedger(claimed_mib={HOST: 9_999})) == Placement({HOST: 600})
    full = place_replica(known, seen((), host_mib=1_000), ClaimLedger(claimed_mib={HOST: 600}))
    assert full == NoRoom("needs 600 MiB of main memory; free: 400 of the 1000 MiB that engines may take")
    predicted = place_replica(MODEL, seen((), host_mib=1_000, need=Requirement(host_mib=700)), ClaimLedger())
    assert predicted == Placement({HOST: 700})


def test_memory_of_an_engine_that_is_gone_is_waited_for_and_then_its_holder_is_named() -> None:
    left = GpuProcess(4711, 900, "python", "rh-gone")
    gpu = Gpu("A", 0, "x", 1_000, used_mib=900, processes=(left,))
    wanted = replace(MODEL, gpu_count=1, vram_mib=800)
    words = (
        "needs 800 MiB on each of 1 GPU; free: GPU 0 has 100 of 1000 MiB; memory that nobody claims is held by GPU 0: "
    )
    words += "process 4711 (python), of rh-gone: 900 MiB"
    just_left = replace(seen((gpu,)), at=100.0, left_at={"A": 90.0})
    assert place_replica(wanted, just_left, ClaimLedger()) == NoRoom(words, waiting=True)
    assert place_replica(wanted, replace(just_left, at=90.0 + RELEASE_S), ClaimLedger()) == NoRoom(words)
    assert place_replica(wanted, seen((gpu,)), ClaimLedger()) == NoRoom(words), "nothing of ours was there"
    full = place_replica(wanted, just_left, ClaimLedger(claimed_mib={"A": 500}))
    assert isinstance(full, NoRoom)
    assert not full.waiting, "others have claimed it"


def test_a_share_is_one_of_each_gpu_that_it_is_taken_of() -> None:
    gpus = (Gpu("A", 0, "x", 80_000, used_mib=70_000), Gpu("B", 1, "x", 24_000))
    share = Requirement(per_gpu_mib=5_000, gpu_share=0.9)
    assert place_replica(replace(MODEL, gpu_count=1), seen(gpus, need=share), ClaimLedger()) == Placement({"B": 21_600})
    free = tuple(replace(gpu, used_mib=0) for gpu in gpus)
    assert place_replica(replace(MODEL, gpu_count=2), seen(free, need=share), ClaimLedger()) == Placement(
        {"A": 72_000, "B": 21_600}
    )
    assert place_replica(
        replace(MODEL, gpu_count=1), seen(free, need=replace(share, per_gpu_mib=30_000)), ClaimLedger()
    ) == Placement({"A": 72_000})
    short = place_replica(replace(MODEL, gpu_count=1), seen(gpus[:1], need=share), ClaimLedger())
    assert isinstance(short, NoRoom)
    assert short.reason.startswith("needs 72000 MiB, 90 % of the largest on each of 1 GPU; free: GPU 0 has 10000 of")
