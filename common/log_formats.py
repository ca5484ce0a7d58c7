"""The forms of a log line: for people, for journald, or as one JSON object."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

LogFormat = Literal["human", "json"]
"""Form of the lines of a program's log."""
HUMAN_LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Least level to its syslog priority (sd-daemon(3)). Lower levels have priority 7, debug."""


def create_formatter(log_format: LogFormat, *, is_journal: bool = False) -> logging.Formatter:
    """Return a formatter for lines of this form.

    `is_journal`: journald reads the lines. Each line then begins with its syslog priority, and lines for people have no
    time.
    """
    lines = JsonFormatter() if log_format == "json" else None
    if is_journal:
        return JournalFormatter(lines)
    return logging.Formatter(HUMAN_LINE) if lines is None else lines


def tag_request(request_id: str | None) -> dict[str, str | None]:
    """Return the `extra` argument for a logging call about a request: it puts the id into `request_id` of a JSON line.

    The message must name the id too, because only JSON lines have that field. None: the request has no id, and the JSON
    line gets no `request_id`.
    """
    return {"request_id": request_id}


def journal_priority(level: int) -> int:
    """Return the syslog priority of a level of `logging`: 2 from CRITICAL on, 3 from ERROR, 4 from WARNING, 6 from
    INFO, and 7 below."""
    return next((priority for least, priority in _PRIORITIES if level >= least), 7)


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and where there is
    one, `request_id` and `exception` (the traceback)."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, without a newline at its end. Raises TypeError or ValueError where the arguments do
        not fit the message."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class JournalFormatter(logging.Formatter):
    """Formats records for journald, which adds the time: each line begins with its priority, which journald removes."""

    def __init__(self, lines: logging.Formatter | None = None) -> None:
        """`lines` formats what follows the priority; None: logger and message."""
        super().__init__("%(name)s: %(message)s")
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of the record, a traceback's included, each with its priority; no newline at the end."""
        prefix = f"<{journal_priority(record.levelno)}>"
        text = super().format(record) if self._lines is None else self._lines.format(record)
        return "\n".join(f"{prefix}{line}" for line in text.split("\n"))
