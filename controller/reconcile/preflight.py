"""Whether a model could be started as it is defined, and when the log says again that it cannot. Reads only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from controller.redaction.redactor import Redact
from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.state import DesiredModel, PreflightResult

log = logging.getLogger(__name__)

FIRST_REMINDER_S: Final = 60.0
LONGEST_REMINDER_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A definition whose preflights fail, one after the other, with the same error."""

    error: str
    since: float
    mentioned_at: float
    """When the log last said so."""
    mentions: int = 1
    """How often the log has said so."""


def decide_mention(known: Refusal | None, error: str, now: float) -> Refusal | None:
    """Whether the log says now that a preflight failed: the refusal to remember then; None: the log says nothing.

    Another error is said at once, the same one after 60 s, and then after twice as long each time, up to an hour.
    `known`: what the log last said of this definition; None: nothing since a preflight succeeded. Pure.
    """
    if known is None or known.error != error:
        return Refusal(error, since=now, mentioned_at=now)
    wait_s = min(LONGEST_REMINDER_S, FIRST_REMINDER_S * 2.0 ** min(known.mentions - 1, 20))
    # Before `mentioned_at`: the clock was set back.
    if known.mentioned_at <= now < known.mentioned_at + wait_s:
        return None
    return replace(known, mentioned_at=now, mentions=known.mentions + 1)


async def run_preflight(
    runtime: Runtime, model: DesiredModel, *, redact: Redact, clock: Callable[[], float]
) -> PreflightResult:
    """What the host says. Every failure is an answer, and shows no secret."""
    try:
        result = await runtime.check_preflight(model.name, model.definition, model.image)
    except RuntimeUnavailableError as error:
        result = PreflightResult(False, clock(), str(error))
    except Exception as fault:
        log.exception("the preflight of %s failed", model.name)
        result = PreflightResult(False, clock(), f"internal error: {fault!r}")
    if result.error is None:
        return result
    return replace(result, error=redact(model.name, result.error))
