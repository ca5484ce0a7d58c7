"""Which GPUs a replica's claims name, as its engine sees them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from controller.engines.base import ClaimedGpu
from controller.runtimes.base import StartError
from controller.state import HOST, Gpu


def find_claimed_gpus(
    claims: Mapping[str, int], gpus: tuple[Gpu, ...] | None, unread_reason: str | None
) -> tuple[Gpu, ...]:
    """The GPUs of `gpus` that `claims` names, in PCI order, MIG instances of one GPU by their number.

    `gpus` None: they cannot be read now, for `unread_reason`.

    Raises:
        StartError: A claimed GPU is not there, or nobody knows.
    """
    uuids = claims.keys() - {HOST}
    if not uuids:
        return ()
    if gpus is None:
        raise StartError(unread_reason or "the GPUs cannot be read now")
    if missing_uuids := sorted(uuids - {gpu.uuid for gpu in gpus}):
        raise StartError(f"GPU {missing_uuids[0]} is not there")
    return tuple(sorted((gpu for gpu in gpus if gpu.uuid in uuids), key=lambda gpu: (gpu.index, gpu.mig or 0)))


def describe_claims(claims: Mapping[str, int], claimed_gpus: tuple[Gpu, ...]) -> tuple[ClaimedGpu, ...]:
    """The same GPUs in the words of an engine's command line."""
    return tuple(ClaimedGpu(gpu.uuid, claims[gpu.uuid], gpu.total_mib) for gpu in claimed_gpus)
