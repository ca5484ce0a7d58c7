"""What engines wrote: read from the daemon while there is a container, from the state folder afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import APIError

from controller.atomic import write_atomic
from controller.runtimes.process_logs import KEPT_BYTES, KEPT_LOGS, TAIL_LINES, plain_tail

READ_LINES: Final = 400
"""Records read for a tail: an engine's line may be several, and a progress bar is many."""


def read_log(client: docker.APIClient, container_id: str, records: int = READ_LINES) -> bytes:
    """The last part of a container's output; empty where the daemon has none (never started, going away). Blocks."""
    try:
        data: bytes = client.logs(container_id, stdout=True, stderr=True, stream=False, tail=records)
    except APIError:
        return b""
    return data


class ExitTails:
    """Log tails of ended containers, each read once; where two threads meet, twice."""

    def __init__(self) -> None:
        self._tails: dict[tuple[str, str], str] = {}

    def tail(self, client: docker.APIClient, inspected: Mapping[str, Any]) -> str:
        """The last lines of an ended container."""
        # The time of its end is part of the key: somebody may start it again by hand.
        key = (str(inspected["Id"]), str((inspected.get("State") or {}).get("FinishedAt")))
        if key not in self._tails:
            self._tails[key] = plain_tail(read_log(client, key[0]), TAIL_LINES)
        return self._tails[key]

    def keep_only(self, container_ids: set[str]) -> None:
        """Forget the containers that are gone."""
        self._tails = {key: tail for key, tail in self._tails.items() if key[0] in container_ids}


class SavedLogs:
    """The tails of removed containers' logs: `<state>/logs/ended/<name>.log`, as of the process runtime's engines."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "logs" / "ended"

    def save(self, name: str, data: bytes) -> None:
        """Keep the last part, readable by the controller's user alone; the oldest files go."""
        if not data:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._path(name), data[-KEPT_BYTES:], durable=False)
        kept = sorted(self._folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-KEPT_LOGS]:
            path.unlink(missing_ok=True)

    def tail(self, name: str, lines: int) -> str:
        """The last lines; empty when nothing was saved."""
        try:
            return plain_tail(self._path(name).read_bytes(), lines)
        except FileNotFoundError:
            return ""

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.log"
