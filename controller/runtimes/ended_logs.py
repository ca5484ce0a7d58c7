"""Keeps the ends of removed replicas' logs, for both runtimes: `<state>/logs/ended/<name>.log`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from common.atomic_write import write_atomic
from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.naming import names_of

KEPT_BYTES: Final = 64 * 1024
"""Bytes at the end of a replica's log that are kept."""
KEPT_LOGS: Final = 50
"""Number of logs that are kept, over all models. The oldest are deleted first."""

log = logging.getLogger(__name__)


class EndedLogs:
    """The folder in which both runtimes keep the ends of removed replicas' logs, one file per replica. Only the
    controller's user may read it. Methods block.

    Replica names become file names unchecked, so callers must check names that come from outside.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save_log(self, name: str, data: bytes) -> None:
        """Keep the last `KEPT_BYTES` (64 KiB) of a log, from the start of a line, and delete all but the newest
        `KEPT_LOGS` (50) logs. A kept log of the same name is replaced. Empty `data` changes nothing. Blocks.

        A failed write or deletion, for example on a full disk, is only logged: it must not prevent the removal of the
        replica.
        """
        if not data:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.log_path(name), _last(data), durable=False)
            self._make_newest(self.log_path(name))
            for path in self._newest_first()[KEPT_LOGS:]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the log of %s is not kept, or older ones are: %s", name, error.strerror or error)

    def read_log(self, name: str) -> bytes | None:
        """Return the kept end of a replica's log, unparsed; None if none is kept. Blocks. Raises
        RuntimeUnavailableError if the file cannot be read."""
        try:
            return self.log_path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or error
            raise RuntimeUnavailableError(f"the kept log of {name} cannot be read: {reason}") from error

    def list_names(self, instance: str, model: str) -> list[str]:
        """Return the names of the model's replicas whose logs are kept, newest first; empty if there are none. Blocks.

        `instance`: this Roundhouse's id, with which the names of its replicas begin (`rh-<instance>-`). Raises
        ValueError if it is not an instance id.
        """
        name_pattern = names_of(instance, model)
        return [path.stem for path in self._newest_first() if name_pattern.fullmatch(path.stem)]

    def highest_attempt(self) -> int:
        """Return the highest attempt number among the replicas whose logs are kept, of all models; 0 if there are none.
        Blocks."""
        numbers = (path.stem.rpartition("-")[2] for path in self._folder.glob("*.log"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def log_path(self, name: str) -> Path:
        """Return the path of a replica's kept log, whether or not it exists."""
        return self._folder / f"{name}.log"

    def _make_newest(self, newest_path: Path) -> None:
        """Give a file a later time than all others: theirs may be of a clock that was set back since."""
        times = [path.stat().st_mtime_ns for path in self._newest_first() if path != newest_path]
        if times and times[0] >= newest_path.stat().st_mtime_ns:
            os.utime(newest_path, ns=(times[0] + 1_000_000, times[0] + 1_000_000))

    def _newest_first(self) -> list[Path]:
        times = {}
        for path in self._folder.glob("*.log"):
            try:
                times[path] = path.stat().st_mtime_ns
            except FileNotFoundError:  # deleted meanwhile
                continue
        return sorted(times, key=times.__getitem__, reverse=True)


def _last(data: bytes) -> bytes:
    if len(data) <= KEPT_BYTES:
        return data
    _, _, lines = data[-KEPT_BYTES - 1 :].partition(b"\n")
    return lines or data[-KEPT_BYTES:]
