"""Replicas onto GPUs, one after the other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engines.stub import StubDefinition
from controller.hosts import HOST, Gpu, Host
from controller.planning.placement import ClaimLedger, NoRoom, Placement, place_replica
from controller.state import DesiredModel, ObservedState, Requirement, Statement
from tests.support.campaign import campaign_count
from tests.support.world import change_host

MODEL = DesiredModel("m", StubDefinition(backend="stub"), "stub", "h", 1, Statement("file", 0.0, ""))
gpu_lists = st.lists(st.integers(100, 2_000), max_size=4).map(
    lambda totals: tuple(Gpu(f"GPU-{i}", i, "fake", total) for i, total in enumerate(totals))
)


def seen(
    gpus: tuple[Gpu, ...] | None, *, host_mib: int | None = None, need: Requirement | None = None
) -> ObservedState:
    """An observation of these GPUs, and of what is known of the one model."""
    return ObservedState(
        0.0, hosts=(Host(gpus=gpus, memory_mib=host_mib),), requirements={"m": need} if need is not None else {}
    )


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
    ledger = ClaimLedger.of(change_host(seen(gpus), unified_gpus=unified))
    for on_gpu, can_read, vram_mib, memory_mib in wanted:
        observed = change_host(seen(gpus if can_read else None, host_mib=total), unified_gpus=unified)
        model = replace(MODEL, gpu_count=int(on_gpu), vram_mib=vram_mib, memory_mib=memory_mib)
        placed = place_replica(model, observed, ledger)
        if isinstance(placed, Placement):
            ledger.add_claims(placed.claims)
        assert sum(ledger.claimed_mib.values()) <= total
