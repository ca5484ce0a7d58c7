"""The GPUs of replicas: which ones each claims, described for its engine, and whose processes are on them. Pure."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from controller.engines.base import ClaimedGpu
from controller.hosts import HOST, Gpu, UnreadGpu
from controller.runtimes.base import RuntimeUnavailableError, StartError

log = logging.getLogger(__name__)


def find_claimed_gpus(
    claims: Mapping[str, int],
    gpus: tuple[Gpu, ...] | None,
    unread_reason: str | None,
    unread_gpus: tuple[UnreadGpu, ...] = (),
) -> tuple[Gpu, ...]:
    """Return the GPUs that `claims` names, in PCI order, MIG instances of one GPU by their number.

    `gpus` None means that no GPU can be read now, because of `unread_reason`. `unread_gpus` are those that the reading
    left out.

    Raises:
        StartError: A claimed GPU does not exist, or cannot be read.
    """
    uuids = claims.keys() - {HOST}
    if not uuids:
        return ()
    if gpus is None:
        raise StartError(unread_reason or "the GPUs cannot be read now")
    if missing_uuids := sorted(uuids - {gpu.uuid for gpu in gpus}):
        unread_by_uuid = {gpu.uuid: gpu for gpu in unread_gpus}
        unread_gpu = next((unread_by_uuid[uuid] for uuid in missing_uuids if uuid in unread_by_uuid), None)
        raise StartError(f"GPU {missing_uuids[0]} is not there" if unread_gpu is None else unread_gpu.description)
    return tuple(sorted((gpu for gpu in gpus if gpu.uuid in uuids), key=lambda gpu: (gpu.index, gpu.mig or 0)))


def describe_claims(claims: Mapping[str, int], claimed_gpus: tuple[Gpu, ...]) -> tuple[ClaimedGpu, ...]:
    """Return the claimed GPUs, in their given order, each with its claim and its memory in MiB, as command lines of
    engines need them. Raises KeyError if a GPU is not in `claims`."""
    return tuple(ClaimedGpu(gpu.uuid, claims[gpu.uuid], gpu.total_mib) for gpu in claimed_gpus)


def visible_gpus(gpus: Sequence[Gpu], *, by_uuid: bool = False) -> dict[str, str]:
    """Return the environment variables that make CUDA see exactly these GPUs, in PCI order. Empty `gpus` hides all.
    Whole GPUs are named by index, MIG instances by uuid. `by_uuid` names all by uuid; use it where CUDA may number GPUs
    differently."""
    in_order = sorted(gpus, key=lambda gpu: (gpu.index, gpu.mig or 0))
    names = [str(gpu.index) if gpu.mig is None and not by_uuid else gpu.uuid for gpu in in_order]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def is_wsl2(kernel_release: str, *, has_dxg: bool) -> bool:
    """Return whether this host is a virtual machine of WSL2: its kernel's release names Microsoft, or the GPU device
    `/dev/dxg` exists (`has_dxg`). On WSL2 a container sees all GPUs, whichever it was given (docker/for-win#12677,
    NVIDIA/nvidia-container-toolkit#21)."""
    return has_dxg or "microsoft" in kernel_release.lower()


class GpuOwners:
    """Remembers the replica of each process that holds GPU memory. A runtime has one, and passes each reading of the
    GPUs through `name_owners`. A process keeps its replica as long as it holds memory, even after that replica is
    gone."""

    def __init__(self, ask: Callable[[], Awaitable[Mapping[str, Collection[int]]]]) -> None:
        """`ask` returns the process ids of each replica, by its name. It is called only when a new process appears, and
        may raise RuntimeUnavailableError."""
        self._read_processes = ask
        self._owners: dict[int, str | None] = {}

    async def name_owners(self, gpus: tuple[Gpu, ...] | None) -> tuple[Gpu, ...] | None:
        """Return the GPUs with each process's `replica` filled in; None for None. `replica` is None for a process of no
        replica, and for a new one if the runtime is unavailable. That raises nothing; the next call asks again."""
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
