"""Whose the processes on GPUs are."""

from __future__ import annotations

from collections.abc import Mapping

from controller.gpus import Gpu, GpuProcess
from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.gpu_owners import GpuOwners


class Host:
    """A runtime's replicas and their processes."""

    def __init__(self) -> None:
        self.pids: dict[str, list[int]] = {}
        self.asked = 0
        self.silent = False

    async def __call__(self) -> Mapping[str, list[int]]:
        self.asked += 1
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
    assert host.asked == 0
    host.pids = {"rh-1": [10, 11]}
    for _ in range(3):
        assert await owners(found, 11, 7) == {11: "rh-1", 7: None}
    assert host.asked == 1
    host.pids = {"rh-1": [10, 11], "rh-2": [12]}
    assert await owners(found, 11, 12) == {11: "rh-1", 12: "rh-2"}
    assert host.asked == 2


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
    assert host.asked == 0
