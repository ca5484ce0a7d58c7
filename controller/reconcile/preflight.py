"""Checks whether a model could be started as defined, and decides when the log repeats that it cannot. Reads only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from controller.redaction.redactor import Redact
from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.state import DesiredModel, PreflightResult

log = logging.getLogger(__name__)

UNAVAILABLE: Final = "what runs the engines cannot be asked now"
"""In place of a runtime's own words, for clients."""
INTERNAL: Final = "internal error"

FIRST_REMINDER_S: Final = 60.0
"""Seconds until the log first repeats an error that stays the same. Each later pause is twice as long."""
LONGEST_REMINDER_S: Final = 3600.0
"""Seconds between two repetitions at most."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A run of failed preflights of one definition with the same error. Times are Unix times in seconds."""

    error: str
    since: float
    """When the log first had this error."""
    mentioned_at: float
    """When the log last had this error."""
    mentions: int = 1
    """How often the log had this error."""


def decide_mention(known: Refusal | None, error: str, now: float) -> Refusal | None:
    """Decide whether the log mentions a failed preflight now, at Unix time `now`. Return what to pass as `known` next
    time; None: do not mention it, and keep `known`. This function logs nothing.

    A new error is to be logged at once; the same error again after 60 s, then after pauses that double up to an hour.
    `known` is the last result that was not None; None: there was none since a preflight of the definition succeeded.
    """
    if known is None or known.error != error:
        return Refusal(error, since=now, mentioned_at=now)
    wait_s = min(LONGEST_REMINDER_S, FIRST_REMINDER_S * 2.0 ** min(known.mentions - 1, 20))
    # If `now` is before `mentioned_at`, the clock was set back.
    if known.mentioned_at <= now < known.mentioned_at + wait_s:
        return None
    return replace(known, mentioned_at=now, mentions=known.mentions + 1)


async def run_preflight(
    runtime: Runtime, model: DesiredModel, *, redact: Redact, clock: Callable[[], float]
) -> PreflightResult:
    """Check on the host whether the model could start, and return the result, with secrets masked. Starts nothing.

    An exception of the runtime is not raised: it becomes a failed result, dated by `clock` (Unix time in seconds).
    """
    try:
        result = await runtime.check_preflight(model.name, model.definition, model.image)
    except RuntimeUnavailableError as error:
        result = PreflightResult(False, clock(), str(error), plain=UNAVAILABLE)
    except Exception as fault:
        log.exception("the preflight of %s failed", model.name)
        result = PreflightResult(False, clock(), f"{INTERNAL}: {fault!r}", plain=INTERNAL)
    if result.error is None:
        return result
    return replace(result, error=redact(model.name, result.error))
