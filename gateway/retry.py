"""Where a request may be tried again, as long as no byte of an answer has come. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from controller.schema.routing import Endpoint
from gateway.routing import pick

MAX_BREAKS = 2
"""Connections that may break under one request. A request that crashes engines must not crash them all."""


@dataclass(frozen=True, slots=True)
class Tries:
    """What one request has met so far. Replicas by name."""

    refused: frozenset[str] = frozenset()
    """Did not accept a connection: the request never reached them."""
    broke: frozenset[str] = frozenset()
    """Accepted it and closed without a byte of an answer: a kept connection gone stale, or an engine that died."""
    breaks: int = 0

    def after_refusal(self, replica: str) -> Tries:
        """These tries, and one where `replica` refused the connection."""
        return replace(self, refused=self.refused | {replica})

    def after_break(self, replica: str) -> Tries:
        """These tries, and one where `replica` closed the connection before answering."""
        return replace(self, broke=self.broke | {replica}, breaks=self.breaks + 1)

    @property
    def fresh_connection(self) -> bool:
        """Whether the next try must open a connection of its own: a second stale one would prove nothing."""
        return self.breaks > 0


def next_endpoint(
    endpoints: tuple[Endpoint, ...], inflight: Mapping[str, int], last_turn: Mapping[str, int], tries: Tries
) -> Endpoint | None:
    """Where to try next; None to give up.

    A replica that refused is not tried again. One that broke is tried once more when no other is left, because its
    kept connection may merely have been stale.
    """
    if tries.breaks >= MAX_BREAKS:
        return None
    untouched = pick(endpoints, inflight, last_turn, avoid=tries.refused | tries.broke)
    return untouched or pick(endpoints, inflight, last_turn, avoid=tries.refused)
