"""What a replica claims while it sleeps, and what is read of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from controller.hosts import HOST, Gpu, GpuProcess
from controller.state import Sleep, decide_asleep_claims, read_held_mib

AWAKE = {"A": 500, "B": 400, HOST: 50}


@pytest.mark.parametrize(
    ("expected_mib", "held_mib", "claims"),
    [
        (20, {"A": 500, "B": 400}, {"A": 20, "B": 20, HOST: 300}),
        (None, {"A": 30, "B": 10}, {"A": 30, "B": 10, HOST: 300}),
        (None, {"A": 600}, {"A": 600, "B": 400, HOST: 300}),  # of B nothing is read: it may hold all
        (20, {"A": 500}, {"A": 20, "B": 400, HOST: 300}),
        (None, {}, {"A": 500, "B": 400, HOST: 300}),
    ],
)
def test_asleep_it_claims_of_its_gpus_what_it_is_seen_to_hold(
    expected_mib: int | None, held_mib: Mapping[str, int], claims: Mapping[str, int]
) -> None:
    fields: dict[str, Any] = {"expected_mib": expected_mib, "held_mib": held_mib}
    assert decide_asleep_claims(AWAKE, **fields, host_mib=300, keeps_weights=True) == claims


@pytest.mark.parametrize(
    ("awake", "host_mib", "keeps_weights", "host"),
    [
        (AWAKE, 300, True, 300),
        (AWAKE, 40, True, 50),  # never less than awake
        (AWAKE, None, True, 950),  # all that it claims may be its weights
        (AWAKE, None, False, 50),
        ({"A": 500}, None, False, None),
        ({"A": 500}, None, True, 500),
        ({"A": 500}, 300, False, 300),
    ],
)
def test_asleep_it_claims_main_memory_for_its_weights(
    awake: Mapping[str, int], host_mib: int | None, keeps_weights: bool, host: int | None
) -> None:
    fields: dict[str, Any] = {"host_mib": host_mib, "keeps_weights": keeps_weights}
    assert decide_asleep_claims(awake, expected_mib=1_000, held_mib={}, **fields).get(HOST) == host


def test_it_is_never_expected_to_hold_more_asleep_than_awake() -> None:
    claims = decide_asleep_claims({"A": 500}, expected_mib=1_000, held_mib={"A": 1}, host_mib=None, keeps_weights=False)
    assert claims == {"A": 500}


def test_what_a_replica_holds_is_the_sum_of_its_processes_on_each_gpu() -> None:
    processes = (GpuProcess(1, 70, "e", "m-0"), GpuProcess(2, 7, "e", "m-0"), GpuProcess(3, 50, "e", "m-1"))
    gpus = (
        Gpu("A", 0, "x", 1_000, processes=processes),
        Gpu("B", 1, "x", 1_000, processes=(GpuProcess(1, None, "e", "m-0"),)),
        Gpu("C", 2, "x", 1_000, processes=(GpuProcess(1, 5, "e", "m-0"),)),
        Gpu("D", 3, "x", 1_000, processes=None),
    )
    assert read_held_mib("m-0", gpus) == {"A": 77, "C": 5}
    assert read_held_mib("m", gpus) == {}


def test_while_it_changes_it_claims_the_larger_of_both() -> None:
    sleep = Sleep({"A": 20, HOST: 300}, {"A": 500, "B": 10, HOST: 50})
    assert sleep.changing_claims == {"A": 500, "B": 10, HOST: 300}


def test_what_is_known_in_part_or_of_a_mig_instance_counts_as_unknown() -> None:
    in_part = Gpu("A", 0, "x", 1_000, processes=(GpuProcess(1, 70, "e", "m-0"), GpuProcess(2, None, "e", "m-0")))
    instance = Gpu("M", 1, "x", 1_000, processes=(GpuProcess(1, 70, "e", "m-0"),), mig=0)
    assert read_held_mib("m-0", (in_part, instance)) == {}
