"""What `up` tells its operator: lines, or with `--json` one JSON object per line."""

from __future__ import annotations

import json
from typing import Any

import typer


class Announcer:
    """Result lines go to stdout, the rest to stderr, where the children's logs go too."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def print_result(self, event: str, text: str, **details: Any) -> None:
        """Something that a script may wait for."""
        if self._as_json:
            typer.echo(json.dumps({"event": event, "message": text, **details}, ensure_ascii=False))
        else:
            typer.echo(text)

    def print_note(self, text: str) -> None:
        """About the work."""
        typer.echo(f"roundhouse: {text}", err=True)
