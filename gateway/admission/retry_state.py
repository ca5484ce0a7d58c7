"""Where one request has failed so far, as long as no byte of an answer has come. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MAX_BREAKS: Final = 2
"""Connections that may break under one request. A request that crashes engines must not crash them all."""


@dataclass(frozen=True, slots=True)
class RetryState:
    """What one request has met. Replicas by name."""

    refused_replicas: frozenset[str] = frozenset()
    """Did not accept a connection: the request never reached them. They are not tried again."""
    broken_replicas: frozenset[str] = frozenset()
    """Accepted it and closed without a byte of an answer: a kept connection gone stale, or an engine that died. They
    are tried once more when no other is left."""
    break_count: int = 0

    def after_refusal(self, replica: str) -> RetryState:
        """These retries, and one where `replica` refused the connection."""
        return replace(self, refused_replicas=self.refused_replicas | {replica})

    def after_break(self, replica: str) -> RetryState:
        """These retries, and one where `replica` closed the connection before answering."""
        return replace(self, broken_replicas=self.broken_replicas | {replica}, break_count=self.break_count + 1)


NO_RETRIES: Final = RetryState()
