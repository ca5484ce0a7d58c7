"""What keeps the controller from its work, or makes what it shows old, in lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.cli.output import one_line, time_words

if TYPE_CHECKING:
    from controller.schema.admin import ListContext
    from controller.schema.status import ControllerStatus


def warning_lines(status: ControllerStatus | ListContext) -> Iterator[str]:
    """Yield a line for each thing that keeps the controller from its work: it is paused, cannot observe what runs, or
    the files have problems. Yields none while all is well."""
    if status.paused:
        yield "paused: the controller observes and does not act; `roundhouse resume` ends it"
    if status.observation_error:
        since = "" if status.observed_at is None else f" since {time_words(status.observed_at)}"
        yield f"what runs cannot be seen{since}: {one_line(status.observation_error)}"
    for problem in status.desired_problems:
        yield f"{problem} (what was last good rules)"
