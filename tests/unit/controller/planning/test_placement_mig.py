"""Replicas on MIG instances."""

from __future__ import annotations

import pytest

from controller.engines.stub import StubDefinition
from controller.gpus import Gpu
from controller.planning.placement import ClaimLedger, NoRoom, Placement, place_replica
from controller.state import DesiredModel, ObservedState, Statement

INSTANCES = (
    Gpu("MIG-a", 0, "NVIDIA H100 MIG 1g.10gb", 9_984, 20, mig=0),
    Gpu("MIG-b", 0, "NVIDIA H100 MIG 3g.40gb", 40_448, 44, mig=1),
)
WHOLE = (Gpu("GPU-c", 1, "NVIDIA H100", 81_559, 4), Gpu("GPU-d", 2, "NVIDIA H100", 81_559, 4))


def placed(gpus: tuple[Gpu, ...], count: int = 1, mib: int = 5_000, *choice: str) -> Placement | NoRoom:
    definition = StubDefinition(backend="stub", gpus=count, vram_mib=mib)
    statement = Statement("file", 0.0, "")
    want = DesiredModel("m", definition, "stub", "h", 1, statement, gpu_count=count, gpu_choice=choice, vram_mib=mib)
    return place_replica(want, ObservedState(1.0, gpus=gpus), ClaimLedger())


@pytest.mark.parametrize(("mib", "uuid"), [(5_000, "MIG-a"), (20_000, "MIG-b"), (50_000, "GPU-c")])
def test_an_instance_is_a_gpu_of_its_own_size(mib: int, uuid: str) -> None:
    assert placed((*INSTANCES, *WHOLE), 1, mib) == Placement({uuid: mib})


@pytest.mark.parametrize("name", ["0:1", "MIG-b"])
def test_an_instance_is_chosen_by_its_place_or_its_uuid(name: str) -> None:
    assert placed(INSTANCES, 1, 5_000, name) == Placement({"MIG-b": 5_000})


def test_its_gpu_s_index_names_no_instance() -> None:
    assert placed(INSTANCES, 1, 5_000, "0") == NoRoom("this host has no GPU 0")


def test_several_gpus_are_wholes() -> None:
    assert placed((*INSTANCES, *WHOLE), 2) == Placement({"GPU-c": 5_000, "GPU-d": 5_000})
    reason = "needs 2 GPUs as wholes, and those here are MIG instances"
    assert placed(INSTANCES, 2) == NoRoom(reason)
    assert placed((*INSTANCES, *WHOLE), 2, 5_000, "MIG-a", "MIG-b") == NoRoom(reason)


def test_no_room_is_told_of_each_instance() -> None:
    found = placed(INSTANCES, 1, 50_000)
    assert isinstance(found, NoRoom)
    assert "GPU 0:0 has 9964 of 9984 MiB, GPU 0:1 has 40404 of 40448 MiB" in found.reason
