"""Whether an edit or a load of a model that serves has reached every replica. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.schema.status import ReplicaStatus


def find_outdated(replicas: Iterable[ReplicaStatus]) -> Iterator[ReplicaStatus]:
    """The replicas of an older definition that requests are routed to."""
    return (replica for replica in replicas if replica.outdated and replica.phase == "ready")


def is_rolled_out(replicas: Iterable[ReplicaStatus], loaded_count: int, wanted_count: int) -> bool:
    """Whether as many replicas serve as are wanted, and none of them runs an older definition."""
    return loaded_count >= wanted_count and not any(find_outdated(replicas))


def is_rollout_blocked(last_error: str | None, blocked: Sequence[str]) -> bool:
    """Whether the last error of a model that serves is what keeps the new definition from it."""
    return last_error is not None and last_error in blocked
