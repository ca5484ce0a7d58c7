"""Replicas onto GPUs, one after the other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engines.stub import StubDefinition
from controller.placement import Ledger, NoRoom, Placed, place
from controller.state import DesiredModel, Gpu, Statement

MODEL = DesiredModel("m", StubDefinition(backend="stub"), "stub", "h", 1, Statement("file", 0.0, ""))
gpu_lists = st.lists(st.integers(100, 2_000), max_size=4).map(
    lambda totals: tuple(Gpu(f"GPU-{i}", i, "fake", total) for i, total in enumerate(totals))
)
requests = st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(1, 1_500)))


@settings(max_examples=1_000)
@given(gpu_lists, st.lists(requests, max_size=8))
def test_claims_never_exceed_memory_and_whole_gpus_are_shared_with_nobody(
    gpus: tuple[Gpu, ...], wanted: list[tuple[int, int | None]]
) -> None:
    ledger = Ledger()
    whole: set[str] = set()
    for count, vram in wanted:
        placed = place(replace(MODEL, gpu_count=count, vram_mib=vram), gpus, ledger)
        if isinstance(placed, NoRoom):
            assert placed.reason
            continue
        assert len(placed.claims) == count
        assert not whole & set(placed.claims)
        if vram is None:
            assert not set(placed.claims) & set(ledger.claimed)
            whole |= set(placed.claims)
        ledger.add(placed.claims)
    totals = {gpu.uuid: gpu.total_mib for gpu in gpus}
    assert all(mib <= totals[uuid] for uuid, mib in ledger.claimed.items())


def test_best_fit_and_choice_and_turns() -> None:
    gpus = (Gpu("A", 0, "x", 1_000, used_mib=500), Gpu("B", 1, "x", 1_000))
    small = replace(MODEL, gpu_count=1, vram_mib=400)
    assert place(small, gpus, Ledger()) == Placed({"A": 400})
    assert place(replace(small, vram_mib=600), gpus, Ledger()) == Placed({"B": 600})
    assert place(replace(small, gpu_choice=("1",)), gpus, Ledger()) == Placed({"B": 400})
    missing = place(replace(small, gpu_choice=("GPU-x",)), gpus, Ledger())
    assert isinstance(missing, NoRoom)
    assert "no GPU GPU-x" in missing.reason
    busy = place(replace(small, gpu_choice=("A",)), gpus, Ledger(busy={"A": "rh-other"}))
    assert busy == NoRoom("GPU 0 is busy with rh-other", waiting=True)
    unknown = place(small, None, Ledger())
    assert isinstance(unknown, NoRoom)
    assert unknown.waiting


def test_memory_that_is_not_released_yet_is_not_free() -> None:
    gpu = Gpu("A", 0, "x", 1_000, used_mib=900)
    wanted = replace(MODEL, gpu_count=1, vram_mib=800)
    assert isinstance(place(wanted, (gpu,), Ledger()), NoRoom)
    assert isinstance(place(wanted, (replace(gpu, used_mib=10),), Ledger()), Placed)
    running = Ledger()
    running.add({"A": 900})
    assert isinstance(place(wanted, (gpu,), running.without([{"A": 900}])), Placed)
