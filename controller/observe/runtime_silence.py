"""How long the runtime has not answered, and what follows from that. Pure."""

from __future__ import annotations

from dataclasses import dataclass

UNHEALTHY_AFTER_S = 30.0
"""Seconds of silence after which the controller calls itself unhealthy. A Docker Engine restarts in less."""


@dataclass(frozen=True, slots=True)
class RuntimeSilence:
    """A runtime that does not answer. Times are Unix times in seconds."""

    since: float
    gone_since: float | None
    """Since when nobody listens at the runtime's address. None: somebody does, or it is not known."""

    def is_unhealthy(self, now: float) -> bool:
        """Return whether the silence has lasted so long that the health check must fail."""
        return now - self.since >= UNHEALTHY_AFTER_S

    def ends_controller(self, now: float, limit_s: float) -> bool:
        """Whether the controller should end, so that its own restart gives it the runtime's new address.

        `limit_s` 0: never. A runtime that hangs does not end the controller: a restart would find it hanging still.
        """
        return limit_s > 0 and self.gone_since is not None and now - self.gone_since >= limit_s


def extend_silence(silence: RuntimeSilence | None, *, is_gone: bool, now: float) -> RuntimeSilence:
    """The silence after one more observation failed at `now`. `is_gone`: nobody listens there."""
    since = now if silence is None else silence.since
    if not is_gone:
        return RuntimeSilence(since, None)
    gone_since = None if silence is None else silence.gone_since
    return RuntimeSilence(since, now if gone_since is None else gone_since)
