"""Finds the replicas to which processes on GPUs belong."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from controller.gpus import Gpu
from controller.runtimes.base import RuntimeUnavailableError

log = logging.getLogger(__name__)


class GpuOwners:
    """Remembers the replica of each process that holds GPU memory. A runtime has one, and passes each reading of the
    GPUs through `name_owners`.

    A process keeps its replica as long as it holds memory, even after that replica is gone.
    """

    def __init__(self, ask: Callable[[], Awaitable[Mapping[str, Collection[int]]]]) -> None:
        """`ask` returns the process ids of each replica, by its name. It is called only when a new process appears, and
        may raise RuntimeUnavailableError."""
        self._read_processes = ask
        self._owners: dict[int, str | None] = {}

    async def name_owners(self, gpus: tuple[Gpu, ...] | None) -> tuple[Gpu, ...] | None:
        """Return the GPUs with each process's `replica` filled in; None for None.

        `replica` is None for a process of no replica, and for a new one if the runtime is unavailable. That raises
        nothing; the next call asks again.
        """
        if gpus is None:
            return None
        pids = {process.pid for gpu in gpus for process in gpu.processes or ()}
        known_owners = {pid: owner for pid, owner in self._owners.items() if pid in pids}
        if pids - known_owners.keys():
            try:
                known_owners = await self._find_owners(pids, known_owners)
            except RuntimeUnavailableError as error:
                log.debug("whose processes are on the GPUs is not known: %s", error)
        self._owners = known_owners
        return tuple(self._name_gpu_owners(gpu) for gpu in gpus)

    async def _find_owners(
        self, pids: Collection[int], known_owners: Mapping[int, str | None]
    ) -> dict[int, str | None]:
        owners = {pid: name for name, each in (await self._read_processes()).items() for pid in each}
        return {pid: owners.get(pid) or known_owners.get(pid) for pid in pids}

    def _name_gpu_owners(self, gpu: Gpu) -> Gpu:
        if not gpu.processes:
            return gpu
        return replace(
            gpu, processes=tuple(replace(each, replica=self._owners.get(each.pid)) for each in gpu.processes)
        )
