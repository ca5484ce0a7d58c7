"""Problems as they may be told: in a log, in an answer, on a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from controller.redaction.patterns import masked_text
from controller.schema.status import Problem


def told(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The problems without what their words mark as a secret. Everything that reads files gives these and no others."""
    return tuple(each.model_copy(update={"message": masked_text(each.message)}) for each in problems)
