"""How long the runtime (say, the Docker Engine) has not answered, and what follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

UNHEALTHY_AFTER_S = 30.0
"""Seconds of silence after which the controller calls itself unhealthy. A Docker Engine restarts in less."""


@dataclass(frozen=True, slots=True)
class RuntimeSilence:
    """A period in which the runtime has not answered. The reconciler keeps it from the first failed observation to the
    next one that succeeds. Times are Unix times in seconds."""

    since: float
    """When the first observation failed."""
    gone_since: float | None
    """When something was first seen not to listen at the runtime's address, without a break since; None: something
    listens there, or it is not known."""

    def is_unhealthy(self, now: float) -> bool:
        """Return whether, at Unix time `now`, the silence has lasted 30 s (`UNHEALTHY_AFTER_S`) or longer, so that the
        health check must fail."""
        return now - self.since >= UNHEALTHY_AFTER_S

    def ends_controller(self, now: float, limit_s: float) -> bool:
        """Return whether the controller should exit, because only its own restart gives it the runtime's new address.

        True once nothing has listened at the runtime's address for `limit_s` seconds; 0 means never. A runtime that
        listens but hangs does not count, since it would still hang after a restart of the controller.
        """
        return limit_s > 0 and self.gone_since is not None and now - self.gone_since >= limit_s


def extend_silence(silence: RuntimeSilence | None, *, is_gone: bool, now: float) -> RuntimeSilence:
    """Return the silence after one more failed observation at Unix time `now`.

    `silence` is the one so far; None if the previous observation succeeded. `is_gone`: nothing listens at the runtime's
    address.
    """
    since = now if silence is None else silence.since
    if not is_gone:
        return RuntimeSilence(since, None)
    gone_since = None if silence is None else silence.gone_since
    return RuntimeSilence(since, now if gone_since is None else gone_since)
