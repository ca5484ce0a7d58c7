"""Claims of running replicas: the claim at the start, or the observed memory where that is more. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.state import HOST


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The most memory, in MiB, that one replica was ever observed to hold. None: it could not be measured, or the
    replica has no GPU."""

    per_gpu_mib: int | None = None
    """Memory of one GPU, the one of which the replica holds the most."""
    host_mib: int | None = None
    """Main memory, including mapped model files."""

    def largest_of(self, other: HeldMemory) -> HeldMemory:
        """Return a HeldMemory with the larger value of each field; a known value counts as larger than None."""
        return HeldMemory(_larger(self.per_gpu_mib, other.per_gpu_mib), _larger(self.host_mib, other.host_mib))


def raise_claims(claims: Mapping[str, int], held: HeldMemory | None) -> Mapping[str, int]:
    """Return a replica's claims, raised to the memory that it was observed to hold (None: it was not observed).

    So the plan places nothing else into that memory. `claims` and the result map GPU uuids, and HOST for main memory,
    to MiB. No claim is lowered, and `claims` is not changed. The claim of every GPU of the replica is raised to the
    memory held on its fullest one, as in the claim of the next load. Main memory is claimed even if the replica started
    without a claim of it.
    """
    if held is None:
        return claims
    raised_claims = {uuid: mib if uuid == HOST else max(mib, held.per_gpu_mib or 0) for uuid, mib in claims.items()}
    if held.host_mib is not None:
        raised_claims[HOST] = max(claims.get(HOST, 0), held.host_mib)
    return raised_claims


def _larger(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
