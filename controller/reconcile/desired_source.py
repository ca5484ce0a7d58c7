"""What the reconciler asks of the desired state, and tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from controller.state import DesiredState


class Desired(Protocol):
    """Where the desired state comes from; reading it never fails, for the last good one rules."""

    def state(self, now: float) -> DesiredState | None:
        """What is wanted now; None: nothing was ever read that is valid."""

    async def refresh(self, now: float) -> None:
        """Read what it comes from, if it is time to."""

    def wake_at(self) -> float | None:
        """When the answer of `state` may change by time alone."""

    def rest(self, models: Mapping[str, str]) -> None:
        """Want these `autoload` models no more until the next request for each; to each the reason."""

    def awake(self, models: Sequence[str]) -> None:
        """Want these again: requests wait for them."""

    def remember(self, loaded_once: frozenset[str], ready_since: dict[str, float]) -> None:
        """Keep what the next controller must know."""
