"""Where a request's attempts have failed before the first byte of an answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MAX_BREAKS: Final = 2
"""Broken connections after which a request is not retried: one that crashes engines must not crash all of them."""


@dataclass(frozen=True, slots=True)
class RetryState:
    """Names of the replicas at which one request has failed before its first byte. Immutable; `NO_RETRIES` is empty.

    Replicas that refused the connection are not tried again; those that broke it are, once no other replica is left.
    """

    refused_replicas: frozenset[str] = frozenset()
    """Replicas that refused the connection, so that the request never reached them. They are not tried again."""
    broken_replicas: frozenset[str] = frozenset()
    """Replicas that accepted the request and closed the connection without an answer: a stale connection, or an engine
    that died. They are tried once more when no other is left."""
    break_count: int = 0
    """Number of broken connections; more than `broken_replicas` has names if one replica broke several."""

    def after_refusal(self, replica: str) -> RetryState:
        """Return a new state to which `replica` is added as one that refused the connection."""
        return replace(self, refused_replicas=self.refused_replicas | {replica})

    def after_break(self, replica: str) -> RetryState:
        """Return a new state to which `replica` is added as one that closed the connection without an answer."""
        return replace(self, broken_replicas=self.broken_replicas | {replica}, break_count=self.break_count + 1)


NO_RETRIES: Final = RetryState()
