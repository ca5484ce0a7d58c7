"""What the reconciler asks of the desired state, and tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from controller.schema.attempts import AttemptNumbers
from controller.state import DesiredState


class DesiredSource(Protocol):
    """Where the desired state comes from; reading it never fails, for the last good one rules."""

    def desired_state(self, now: float) -> DesiredState | None:
        """What is wanted now; None: nothing was ever read that is valid."""

    async def refresh_files(self, now: float) -> None:
        """Read what it comes from, if it is time to."""

    def wake_at(self) -> float | None:
        """When the answer of `state` may change by time alone."""

    def evict_models(self, models: Mapping[str, str]) -> None:
        """Want these `autoload` models no more until the next request for each; to each the reason."""

    def request_reload(self, models: Sequence[str]) -> None:
        """Want these again: requests wait for them."""

    def remember_attempts(self, attempts: AttemptNumbers) -> None:
        """Keep which names were given, for every controller to come."""

    def remember_loaded(self, loaded_once: frozenset[str], ready_since: dict[str, float]) -> None:
        """Keep what the next controller must know."""
