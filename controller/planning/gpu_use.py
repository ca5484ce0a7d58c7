"""Whether a ready replica computes on the GPUs that it claims, by the memory that it holds there. Pure.

Some engines compute on the CPU where CUDA does not start, and become ready. Their own refusals are better
(`--device` of llama-server); this is for all of them, whatever they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.state import HOST, Gpu, ObservedReplica

UNUSED_MIB: Final = 64
"""What holds less of a GPU does not compute there. CUDA's context alone, one for each process, takes 107 MiB of an RTX
4060 Ti, 256 of an RTX 3090 and 555 of an RTX PRO 6000 (llama.cpp#23604, InvokeAI#9413); the model comes on top."""
SETTLED_S: Final = 20.0
"""A replica that has been ready this long was ready when the GPUs were read: a reading of the probe container is 17 s
old at most."""


def measure_gpu_use(
    replica: ObservedReplica, gpus: tuple[Gpu, ...], growth_mib: Mapping[str, int], now: float
) -> dict[str, int]:
    """MiB that a replica holds of its GPUs, by uuid, as read since it was ready. Of a GPU that is left out, nothing is
    known.

    `growth_mib` is by how much the use of each GPU grew by its load, by uuid, of those where nobody else changed it.
    It stands where the driver does not tell what processes hold, but not for a GPU that has main memory in place of its
    own, which everybody uses. MIG instances are left out: drivers differ about their processes.
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
    own_mibs = [process.mib for process in processes if process.replica == name]
    known_mibs = [mib for mib in own_mibs if mib is not None]
    if own_mibs:
        return sum(known_mibs) if len(known_mibs) == len(own_mibs) else growth_mib
    # A driver may tell no process at all and call that success (WSL2), and whose a process is may be unknown. Where
    # another replica's is told here, with its memory, this one's would be.
    tells_ours = any(process.replica is not None and process.mib is not None for process in processes)
    may_be_own = any(process.replica is None and (process.mib or UNUSED_MIB) >= UNUSED_MIB for process in processes)
    return 0 if tells_ours and not may_be_own else growth_mib


def explain_unused_gpus(replica: ObservedReplica, held_mib: Mapping[str, int]) -> str | None:
    """Why a ready replica has failed that holds almost nothing of any GPU that it claims; None: it uses one, claims
    none, or that is not known. `held_mib` is of `measure_gpu_use`."""
    uuids = sorted(replica.claims.keys() - {HOST})
    if not uuids or any(held_mib.get(uuid, UNUSED_MIB) >= UNUSED_MIB for uuid in uuids):
        return None
    holdings = " and ".join(f"{held_mib[uuid]} MiB of {uuid}" for uuid in uuids)
    return (
        f"it is ready and holds {holdings}: it does not compute there, but on the CPU. Look whether its image or build "
        "has CUDA, and whether CUDA started (its log; `nvidia-smi`). Where the CPU is meant, take `gpus` out"
    )
