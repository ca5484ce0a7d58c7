"""Which GPUs a replica's claims name, as its engine sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.engines.base import ClaimedGpu
from controller.runtimes.base import StartError
from controller.state import HOST, Gpu, UnreadGpu


def find_claimed_gpus(
    claims: Mapping[str, int],
    gpus: tuple[Gpu, ...] | None,
    unread_reason: str | None,
    unread_gpus: tuple[UnreadGpu, ...] = (),
) -> tuple[Gpu, ...]:
    """The GPUs of `gpus` that `claims` names, in PCI order, MIG instances of one GPU by their number.

    `gpus` None: they cannot be read now, for `unread_reason`. `unread_gpus`: those that the reading left out.

    Raises:
        StartError: A claimed GPU is not there, or nobody knows.
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
    """The same GPUs in the words of an engine's command line."""
    return tuple(ClaimedGpu(gpu.uuid, claims[gpu.uuid], gpu.total_mib) for gpu in claimed_gpus)


def visible_gpus(gpus: Sequence[Gpu], *, by_uuid: bool = False) -> dict[str, str]:
    """CUDA sees these GPUs (by index, in PCI order) and MIG instances (by uuid) and no others; none hides all.

    `by_uuid`: their indices may be others to CUDA.
    """
    in_order = sorted(gpus, key=lambda gpu: (gpu.index, gpu.mig or 0))
    names = [str(gpu.index) if gpu.mig is None and not by_uuid else gpu.uuid for gpu in in_order]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def is_wsl2(kernel_release: str, *, has_dxg: bool) -> bool:
    """Whether this host is a virtual machine of WSL2, by its kernel, or by the device through which it has GPUs.

    There a container sees all GPUs, whichever it was given (docker/for-win#12677, NVIDIA/nvidia-container-toolkit#21).
    """
    return has_dxg or "microsoft" in kernel_release.lower()
