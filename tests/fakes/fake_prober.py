"""A fake of `controller.observe.prober.Prober`: a replica is ready as soon as the test says so; nothing is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controller.observe.health import ProbedHealth
from controller.observe.prober import ProbeTarget
from controller.state import Health, IdleSpan


class FakeProber:
    """Knows replicas that run; `ready` is when each became so."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        self.idle_spans: dict[str, IdleSpan] = {}
        self.requested_probes: list[str] = []
        """Replicas that somebody wanted to be probed at once."""

    def track_targets(self, targets: Mapping[str, ProbeTarget], keep: Collection[str]) -> None:
        """Forget what is neither watched nor kept."""
        known = {*targets, *keep}
        self.ready = {name: since for name, since in self.ready.items() if name in known}
        for name, target in targets.items():
            if target.ready_since is not None:
                self.ready.setdefault(name, target.ready_since)

    async def wait_for_first_round(self) -> None:
        """Nothing is asked."""

    def get_health(self, name: str) -> ProbedHealth:
        since = self.ready.get(name)
        if since is None:
            return ProbedHealth()
        return ProbedHealth(
            health=Health.READY,
            ready_since=since,
            idle=True,
            idle_span=self.idle_spans.get(name),
            probed_at=float("inf"),
        )

    def probe_now(self, name: str, *, then_wake: bool = False) -> None:
        """There is nothing to hurry; it is noted."""
        self.requested_probes.append(name)

    async def close(self) -> None:
        """Nothing to stop."""
