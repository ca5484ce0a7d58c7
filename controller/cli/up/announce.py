"""What `up` tells its operator: lines, or with `--json` one JSON object per line."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import typer


class Announcer:
    """Result lines go to stdout, the rest to stderr, where the children's logs go too.

    A line that cannot be written (a log on a full disk, a reader that is gone) is lost, and nothing else is.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def print_result(self, event: str, text: str, **details: Any) -> None:
        """Something that a script may wait for."""
        if self._as_json:
            text = json.dumps({"event": event, "message": text, **details}, ensure_ascii=False)
        with suppress(OSError):
            typer.echo(text)

    def print_note(self, text: str) -> None:
        """About the work."""
        with suppress(OSError):
            typer.echo(f"roundhouse: {text}", err=True)
