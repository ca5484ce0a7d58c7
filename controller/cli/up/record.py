"""Which processes `roundhouse up` has started: `<state folder>/up.json`, so that `down` finds what a crash left.

The record is best effort: controller.cli.up.marks finds what it lacks.

`up.lock` beside it is held for as long as an `up` lives, whatever ends it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.up.announce import Announcer
from controller.runtimes.process.stat import Process, boot_id, is_alive, read_stat
from controller.schema.status import SCHEMA_VERSION
from controller.storage.atomic_write import write_atomic

RECORD_NAME: Final = "up.json"
LOCK_NAME: Final = "up.lock"


class ProcessRecord(BaseModel):
    """A process, told apart from a later one that was given its pid."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessRecord | None:
        """None: it is gone."""
        stat = read_stat(pid)
        return cls(pid=pid, start_ticks=stat.process.start_ticks) if stat is not None else None

    @property
    def process(self) -> Process:
        """As /proc knows it."""
        return Process(self.pid, self.start_ticks)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return is_alive(self.process)


class UpRecord(BaseModel):
    """One `up` and what it started, by name (`controller`, `gateway`)."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = SCHEMA_VERSION
    boot_id: str = Field(default_factory=boot_id)
    up: ProcessRecord | None = None
    children: dict[str, ProcessRecord] = Field(default_factory=dict)


def read_record(state: Path) -> UpRecord:
    """What the last `up` recorded, in this boot of the machine; empty when there is nothing. Raises CommandError."""
    path = state / RECORD_NAME
    try:
        record = UpRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return UpRecord()
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise CommandError(f"{path} cannot be read ({reason}): remove it when no controller or gateway runs") from None
    return record if record.boot_id == boot_id() else UpRecord()


def write_record(state: Path, record: UpRecord) -> None:
    """Keep the record."""
    write_atomic(state / RECORD_NAME, record.model_dump_json().encode())


def remove_record(state: Path) -> None:
    """All that was recorded has ended."""
    (state / RECORD_NAME).unlink(missing_ok=True)


class ChildRecorder:
    """Records which programs this process has started. A record that cannot be written ends nothing: `down` finds the
    programs by their marks, too."""

    def __init__(self, state: Path, announcer: Announcer) -> None:
        """`announcer` is told once that records cannot be written, until one was written again."""
        self._state = state
        self._announcer = announcer
        self._is_recorded = True
        """Whether the last record could be written."""

    def record_children(self, pids: Mapping[str, int]) -> None:
        """Record the programs that run now. `pids`: program name to process id."""
        children = {name: record for name, pid in pids.items() if (record := ProcessRecord.of(pid)) is not None}
        try:
            write_record(self._state, UpRecord(up=ProcessRecord.of(os.getpid()), children=children))
        except OSError as error:
            if self._is_recorded:
                path, reason = self._state / RECORD_NAME, error.strerror or error
                self._announcer.print_note(f"what runs cannot be recorded in {path} ({reason}); `down` finds it")
            self._is_recorded = False
        else:
            self._is_recorded = True


def lock_state(state: Path) -> int:
    """Make the state folder and lock it for one `up`; the descriptor holds the lock. Raises CommandError."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(f"state folder {state} cannot be used: {error.strerror or error}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        owner = read_record(state).up
        process = f" (process {owner.pid})" if owner is not None else ""
        message = f"another `roundhouse up`{process} runs on state folder {state}; `roundhouse down` ends it"
        raise CommandError(message, ExitCode.LOCKED) from None
    return descriptor
