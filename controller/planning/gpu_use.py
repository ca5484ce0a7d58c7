"""Detecting ready replicas that compute on the CPU instead of their GPUs, by the GPU memory that they hold. Pure.

Some engines fall back to the CPU where CUDA does not start, and become ready. An engine's own refusal is better
(`--device` of llama-server); this check is for all engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.hosts import Gpu, is_memory_key
from controller.state import ObservedReplica

UNUSED_MIB: Final = 64
"""A process that holds less MiB of a GPU does not compute there. CUDA's context alone, one for each process, takes 107
MiB of an RTX 4060 Ti, 256 of an RTX 3090 and 555 of an RTX PRO 6000 (llama.cpp#23604, InvokeAI#9413)."""
SETTLED_S: Final = 20.0
"""Seconds after which a ready replica was surely ready when the GPUs were read: readings are 17 s old at most."""


def measure_gpu_use(
    replica: ObservedReplica, gpus: tuple[Gpu, ...], growth_mib: Mapping[str, int], now: float
) -> dict[str, int]:
    """Return, by GPU uuid, the MiB that a replica holds of each GPU that it claims. A GPU is left out where that is not
    known.

    Empty unless the replica has been ready for 20 s (`SETTLED_S`) at `now` (Unix time). `growth_mib`: GPU uuid to the
    MiB by which the GPU's use grew while the replica loaded, where no other process changed it. It is used where the
    driver does not report the memory of processes, but not for GPUs that share main memory. MIG instances are left out,
    because drivers differ about their processes.
    """
    if replica.ready_since is None or now - replica.ready_since < SETTLED_S:
        return {}
    held_mib = {
        gpu.uuid: _processes_mib(gpu, replica.name, None if gpu.is_unified else growth_mib.get(gpu.uuid))
        for gpu in gpus
        if gpu.uuid in replica.claims and gpu.mig is None
    }
    return {uuid: mib for uuid, mib in held_mib.items() if mib is not None}


def _processes_mib(gpu: Gpu, name: str, growth_mib: int | None) -> int | None:
    processes = gpu.processes or ()
    if any(process.replica == name for process in processes):
        held_mib = gpu.sum_held_mib(name)
        return growth_mib if held_mib is None else held_mib
    # A driver may tell no process at all and call that success (WSL2), and whose a process is may be unknown. Where
    # another replica's is told here, with its memory, this one's would be.
    tells_ours = any(process.replica is not None and process.mib is not None for process in processes)
    may_be_own = any(process.replica is None and (process.mib or UNUSED_MIB) >= UNUSED_MIB for process in processes)
    return 0 if tells_ours and not may_be_own else growth_mib


def explain_unused_gpus(replica: ObservedReplica, held_mib: Mapping[str, int]) -> str | None:
    """Explain why a ready replica that holds less than 64 MiB (`UNUSED_MIB`) of each of its GPUs counts as failed.

    None: it uses a GPU, claims none, or its use of one of them is not known. `held_mib`: result of `measure_gpu_use`.
    The caller checks that the replica is ready and that its engine computes on GPUs.
    """
    uuids = sorted(key for key in replica.claims if not is_memory_key(key))
    if not uuids or any(held_mib.get(uuid, UNUSED_MIB) >= UNUSED_MIB for uuid in uuids):
        return None
    holdings = " and ".join(f"{held_mib[uuid]} MiB of {uuid}" for uuid in uuids)
    return (
        f"it is ready and holds {holdings}: it does not compute there, but on the CPU. Look whether its image or build "
        "has CUDA, and whether CUDA started (its log; `nvidia-smi`). Where the CPU is meant, take `gpus` out"
    )
