"""Whether an edit or a load of a model that serves has reached every replica. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contract.status import ReplicaStatus


def find_outdated(replicas: Iterable[ReplicaStatus]) -> Iterator[ReplicaStatus]:
    """Yield the replicas of an older definition that requests are routed to, in the given order. The iterator can be
    used once."""
    return (replica for replica in replicas if replica.outdated and replica.phase == "ready")


def is_rolled_out(replicas: Iterable[ReplicaStatus], loaded_count: int, wanted_count: int) -> bool:
    """Return whether at least as many replicas serve (`loaded_count`) as are wanted (`wanted_count`), and none of
    `replicas` serves an older definition. True for a model that wants none and has none."""
    return loaded_count >= wanted_count and not any(find_outdated(replicas))


def is_rollout_blocked(last_error: str | None, blocked: Sequence[str]) -> bool:
    """Return whether the last error of a model that serves is one of the reasons (`blocked`) why its new definition
    cannot be started. False without an error. Both arguments are fields of the model's status."""
    return last_error is not None and last_error in blocked
