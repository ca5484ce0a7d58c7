"""Where one request has failed so far, as long as no byte of an answer has come. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MAX_BREAKS: Final = 2
"""Connections that may break under one request. A request that crashes engines must not crash them all."""


@dataclass(frozen=True, slots=True)
class Tries:
    """What one request has met. Replicas by name."""

    refused: frozenset[str] = frozenset()
    """Did not accept a connection: the request never reached them. They are not tried again."""
    broke: frozenset[str] = frozenset()
    """Accepted it and closed without a byte of an answer: a kept connection gone stale, or an engine that died. They
    are tried once more when no other is left."""
    breaks: int = 0

    def after_refusal(self, replica: str) -> Tries:
        """These tries, and one where `replica` refused the connection."""
        return replace(self, refused=self.refused | {replica})

    def after_break(self, replica: str) -> Tries:
        """These tries, and one where `replica` closed the connection before answering."""
        return replace(self, broke=self.broke | {replica}, breaks=self.breaks + 1)


NO_TRIES: Final = Tries()
