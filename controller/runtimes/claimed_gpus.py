"""Finds the GPUs that a replica claims, and describes them for its engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.engines.base import ClaimedGpu
from controller.gpus import Gpu, UnreadGpu
from controller.runtimes.base import StartError
from controller.state import HOST


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
    differently.
    """
    in_order = sorted(gpus, key=lambda gpu: (gpu.index, gpu.mig or 0))
    names = [str(gpu.index) if gpu.mig is None and not by_uuid else gpu.uuid for gpu in in_order]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def is_wsl2(kernel_release: str, *, has_dxg: bool) -> bool:
    """Return whether this host is a virtual machine of WSL2: its kernel's release names Microsoft, or the GPU device
    `/dev/dxg` exists (`has_dxg`).

    On WSL2 a container sees all GPUs, whichever it was given (docker/for-win#12677,
    NVIDIA/nvidia-container-toolkit#21).
    """
    return has_dxg or "microsoft" in kernel_release.lower()
