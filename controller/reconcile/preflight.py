"""Whether a model could be started as it is defined. Reads only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from controller.redaction.redactor import Redact
from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.state import DesiredModel, PreflightResult

log = logging.getLogger(__name__)


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
