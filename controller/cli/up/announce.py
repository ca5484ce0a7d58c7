"""What `up` tells its operator: lines, or with `--json` one JSON object per line."""

from __future__ import annotations

import json
import sys
from typing import Any

from common.line_writer import LineWriter


class Announcer:
    """Result lines go to stdout, the rest to stderr, where the children's logs go too.

    A line that cannot be written (a log on a full disk, a reader that is gone or stalled) is lost, and nothing else is.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._stdout = LineWriter(sys.stdout)
        self._stderr = LineWriter(sys.stderr)

    def print_result(self, event: str, text: str, **details: Any) -> None:
        """Something that a script may wait for."""
        if self._as_json:
            text = json.dumps({"event": event, "message": text, **details}, ensure_ascii=False)
        self._stdout.write_line(text)

    def print_note(self, text: str) -> None:
        """About the work."""
        self._stderr.write_line(f"roundhouse: {text}")
