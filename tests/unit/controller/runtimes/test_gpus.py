"""Claims and the GPUs that they name, and whose the processes on GPUs are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from controller.engines.base import ClaimedGpu
from controller.hosts import HOST, Gpu, GpuProcess, UnreadGpu
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.runtimes.gpus import GpuOwners, describe_claims, find_claimed_gpus, is_wsl2, visible_gpus

FIRST = Gpu("GPU-z", 0, "fake", 24_000)
SECOND = Gpu("GPU-a", 1, "fake", 16_000)
INSTANCE = Gpu("MIG-b", 2, "fake", 5_000, mig=1)
OTHER_INSTANCE = Gpu("MIG-a", 2, "fake", 5_000, mig=3)
GPUS = (OTHER_INSTANCE, SECOND, INSTANCE, FIRST)


def test_claimed_gpus_are_in_pci_order_whatever_their_uuids_are() -> None:
    claims = {"GPU-a": 100, "GPU-z": 200, HOST: 5}
    found = find_claimed_gpus(claims, GPUS, None)
    assert found == (FIRST, SECOND)
    assert describe_claims(claims, found) == (ClaimedGpu("GPU-z", 200, 24_000), ClaimedGpu("GPU-a", 100, 16_000))
    assert find_claimed_gpus({"MIG-a": 1, "MIG-b": 1}, GPUS, None) == (INSTANCE, OTHER_INSTANCE)


def test_claims_of_main_memory_alone_need_no_reading() -> None:
    assert find_claimed_gpus({HOST: 5}, None, "they cannot be read") == ()


def test_a_gpu_that_is_not_there_and_gpus_that_are_unknown_are_told_apart() -> None:
    with pytest.raises(StartError, match="GPU GPU-x is not there"):
        find_claimed_gpus({"GPU-a": 1, "GPU-x": 1}, GPUS, None)
    lost = (UnreadGpu(3, "it has fallen off the bus", "GPU-x"), UnreadGpu(4, "Unknown Error"))
    with pytest.raises(StartError, match=r"^GPU 3 \(GPU-x\) is left out: it has fallen off the bus$"):
        find_claimed_gpus({"GPU-a": 1, "GPU-x": 1}, GPUS, None, lost)
    with pytest.raises(StartError, match="the driver is away"):
        find_claimed_gpus({"GPU-a": 1}, None, "the driver is away")


@pytest.mark.parametrize(
    ("gpus", "by_uuid", "devices"),
    [
        ([], False, ""),
        ([Gpu("GPU-b", 2, "fake", 1), Gpu("GPU-a", 10, "fake", 1)], False, "2,10"),
        ([Gpu("MIG-a", 0, "fake", 1, mig=1)], False, "MIG-a"),
        ([Gpu("GPU-b", 2, "fake", 1)], True, "GPU-b"),
    ],
    ids=["none", "by number", "a MIG instance", "where numbers may be others to CUDA"],
)
def test_devices_that_an_engine_may_see(gpus: list[Gpu], by_uuid: bool, devices: str) -> None:
    variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices}
    assert visible_gpus(gpus, by_uuid=by_uuid) == variables


@pytest.mark.parametrize(
    ("release", "has_dxg", "is_one"),
    [
        ("5.15.153.1-microsoft-standard-WSL2", False, True),
        ("4.19.121-microsoft-standard", False, True),
        ("6.6.36.3-own-build", True, True),
        ("6.1.0-28-amd64", False, False),
        ("6.8.0-1021-azure", False, False),
    ],
)
def test_wsl2_is_known_by_its_kernel_or_its_device(release: str, has_dxg: bool, is_one: bool) -> None:
    assert is_wsl2(release, has_dxg=has_dxg) is is_one


class Host:
    """A runtime's replicas and their processes."""

    def __init__(self) -> None:
        self.pids: dict[str, list[int]] = {}
        self.requests = 0
        self.silent = False

    async def __call__(self) -> Mapping[str, list[int]]:
        self.requests += 1
        if self.silent:
            raise RuntimeUnavailableError("the daemon hangs")
        return self.pids


def card(*pids: int) -> tuple[Gpu, ...]:
    return (Gpu("GPU-a", 0, "fake", 9, processes=tuple(GpuProcess(pid, 1) for pid in pids)),)


async def owners(found: GpuOwners, *pids: int) -> dict[int, str | None]:
    [gpu] = await found.name_owners(card(*pids)) or ()
    return {each.pid: each.replica for each in gpu.processes or ()}


async def test_the_runtime_is_asked_only_about_new_processes() -> None:
    host = Host()
    found = GpuOwners(host)
    assert await owners(found) == {}
    assert host.requests == 0
    host.pids = {"rh-1": [10, 11]}
    for _ in range(3):
        assert await owners(found, 11, 7) == {11: "rh-1", 7: None}
    assert host.requests == 1
    host.pids = {"rh-1": [10, 11], "rh-2": [12]}
    assert await owners(found, 11, 12) == {11: "rh-1", 12: "rh-2"}
    assert host.requests == 2


async def test_a_process_that_outlives_its_replica_keeps_its_owner_until_it_is_gone() -> None:
    host = Host()
    found = GpuOwners(host)
    host.pids = {"rh-1": [10]}
    assert await owners(found, 10) == {10: "rh-1"}
    host.pids = {}
    assert await owners(found, 10, 8) == {10: "rh-1", 8: None}
    assert await owners(found) == {}
    assert await owners(found, 10) == {10: None}, "the number was given out again"


async def test_a_runtime_that_does_not_answer_is_asked_again() -> None:
    host = Host()
    found = GpuOwners(host)
    host.pids, host.silent = {"rh-1": [10]}, True
    assert await owners(found, 10) == {10: None}
    host.silent = False
    assert await owners(found, 10) == {10: "rh-1"}


async def test_what_is_unknown_stays_unknown() -> None:
    host = Host()
    found = GpuOwners(host)
    silent = (Gpu("GPU-a", 0, "fake", 9),)
    assert await found.name_owners(None) is None
    assert await found.name_owners(silent) == silent
    assert host.requests == 0
