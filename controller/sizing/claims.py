"""Claims of replicas that run: what each claimed at its start, or what it was seen to hold where that is more. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.state import HOST


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The most MiB that one replica was seen to hold. None: nobody could tell."""

    per_gpu_mib: int | None = None
    """Of that of its GPUs of which it holds the most."""
    host_mib: int | None = None
    """Of main memory, mapped model files included."""

    def largest_of(self, other: HeldMemory) -> HeldMemory:
        """The larger figure of each."""
        return HeldMemory(_larger(self.per_gpu_mib, other.per_gpu_mib), _larger(self.host_mib, other.host_mib))


def raise_claims(claims: Mapping[str, int], held: HeldMemory | None) -> Mapping[str, int]:
    """The claims of a replica that was seen to hold `held` (None: it was not looked at): never less than it holds.

    So nothing else is placed where its memory is. Each of its GPUs is claimed as the fullest, as a next load would
    claim them; main memory that nobody could predict is claimed once it is seen.
    """
    if held is None:
        return claims
    raised_claims = {uuid: mib if uuid == HOST else max(mib, held.per_gpu_mib or 0) for uuid, mib in claims.items()}
    if held.host_mib is not None:
        raised_claims[HOST] = max(claims.get(HOST, 0), held.host_mib)
    return raised_claims


def _larger(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
