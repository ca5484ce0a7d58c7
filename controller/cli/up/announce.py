"""What `up` tells its operator: lines, or with `--json` one JSON object per line."""

from __future__ import annotations

import json
import sys
from typing import Any

from common.line_writer import LineWriter


class Announcer:
    """Prints what `up` tells its operator: results to stdout, notes to stderr, where the children's logs go too.

    `as_json`: whether results are JSON; notes never are. A line that cannot be written (a log on a full disk, a reader
    that is gone or stalled) is lost; nothing is raised.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._stdout = LineWriter(sys.stdout)
        self._stderr = LineWriter(sys.stderr)

    def print_result(self, event: str, text: str, **details: Any) -> None:
        """Print to stdout something that a script may wait for: the line `text`, or with `--json` a JSON object on one
        line. Its fields are `event`, `message` (the text) and, beside these at the top level, each of `details`, which
        only the JSON shows. Raises TypeError for a detail that `json` cannot write."""
        if self._as_json:
            text = json.dumps({"event": event, "message": text, **details}, ensure_ascii=False)
        self._stdout.write_line(text)

    def print_note(self, text: str) -> None:
        """Print a line about the work to stderr, after `roundhouse: `; also with `--json` as plain text."""
        self._stderr.write_line(f"roundhouse: {text}")
