"""`current_time`: the date and time in a time zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.tools.spec import ToolCall, ToolResult, ToolSpec

SPEC: Final = ToolSpec(
    name="current_time",
    display_name="Current time",
    description="Tells the current date, weekday and time in a time zone.",
    parameters={
        "type": "object",
        "properties": {
            "timezone": {
                "type": "string",
                "maxLength": 64,
                "description": "Name of the time zone in the IANA database, such as Europe/Berlin; default: UTC.",
            }
        },
        "additionalProperties": False,
    },
    writes=False,
    server=None,
)


class CurrentTime:
    """Tells the time by the gateway's clock."""

    spec = SPEC

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: Unix time in seconds."""
        self._clock = clock

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the time in ISO 8601 with its offset, the weekday, and the zone, on one line: that of the argument
        `timezone`, by default UTC. A result with `is_error` names a zone that the gateway's machine does not know."""
        name = call.arguments.get("timezone") or "UTC"
        try:
            # Also where the machine has no database of time zones.
            zone = UTC if name == "UTC" else ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return ToolResult(f"There is no time zone {name!r} in the IANA database.", is_error=True)
        now = datetime.fromtimestamp(self._clock(), UTC).astimezone(zone)
        return ToolResult(f"{now.isoformat(timespec='seconds')}, {now:%A}, {name} ({now.tzname()})")
