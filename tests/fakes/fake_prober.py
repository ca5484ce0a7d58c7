"""A fake of `controller.observe.prober.Prober`: a replica is ready as soon as the test says so; nothing is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controller.observe.health import Vitals
from controller.observe.prober import Target
from controller.state import Health


class FakeProber:
    """Knows replicas that run; `ready` is when each became so."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}

    def track(self, targets: Mapping[str, Target], keep: Collection[str]) -> None:
        """Forget what is neither watched nor kept."""
        known = {*targets, *keep}
        self.ready = {name: since for name, since in self.ready.items() if name in known}
        for name, target in targets.items():
            if target.ready_since is not None:
                self.ready.setdefault(name, target.ready_since)

    async def first_round(self) -> None:
        """Nothing is asked."""

    def vitals(self, name: str) -> Vitals:
        """As the test says."""
        since = self.ready.get(name)
        if since is None:
            return Vitals()
        return Vitals(health=Health.READY, ready_since=since, idle=True, probed_at=float("inf"))

    def nudge(self, name: str) -> None:
        """There is nothing to hurry."""

    async def close(self) -> None:
        """Nothing to stop."""
