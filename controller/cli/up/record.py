"""Record of the processes that `roundhouse up` started, `<state folder>/up.json`, so that `down` finds them after a
crash.

The record may be incomplete: `controller.cli.up.marks` finds the other processes. `up.lock` beside it is locked for as
long as an `up` lives, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.atomic_write import write_atomic
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.up.announce import Announcer
from controller.runtimes.process.stat import Process, boot_id, is_alive, read_stat
from controller.schema.status import SCHEMA_VERSION

RECORD_NAME: Final = "up.json"
LOCK_NAME: Final = "up.lock"


class ProcessRecord(BaseModel):
    """Identity of a process: pid and start time, so that a later process with the same pid is not mistaken for it.
    Valid until the machine boots again."""

    pid: int
    start_ticks: int
    """Start time in clock ticks since boot, as in /proc/<pid>/stat."""

    @classmethod
    def of(cls, pid: int) -> ProcessRecord | None:
        """Return the record of the process with this pid; None: there is no such process. A zombie still is one."""
        stat = read_stat(pid)
        return cls(pid=pid, start_ticks=stat.process.start_ticks) if stat is not None else None

    @property
    def process(self) -> Process:
        """The same pid and start time, in the type that the functions of `controller.runtimes.process` take."""
        return Process(self.pid, self.start_ticks)

    def is_alive(self) -> bool:
        """Return whether this very process still runs; a zombie counts as ended."""
        return is_alive(self.process)


class UpRecord(BaseModel):
    """The content of `up.json`: one `up` (or `service run`) and its children by name (`controller`, `gateway`,
    `retrieval`, `transfers`). `boot_id`: the boot of the machine in which it was written. `up` None: nothing is
    recorded."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = SCHEMA_VERSION
    boot_id: str = Field(default_factory=boot_id)
    up: ProcessRecord | None = None
    children: dict[str, ProcessRecord] = Field(default_factory=dict)


def read_record(state: Path) -> UpRecord:
    """Return the record in the state folder. Empty where there is none, or where it is from before the last boot.
    Recorded processes may have ended since. Raises CommandError where the file cannot be read or is damaged."""
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
    """Replace `up.json` by this record, atomically. Raises OSError where it cannot be written."""
    write_atomic(state / RECORD_NAME, record.model_dump_json().encode())


def remove_record(state: Path) -> None:
    """Remove the record; no error if there is none. Call it after all recorded processes have ended, which is not
    checked. Raises OSError where it cannot be removed."""
    (state / RECORD_NAME).unlink(missing_ok=True)


class ChildRecorder:
    """Writes `up.json` for this process and the programs that it supervises; a `Supervisor` calls it after each start.
    A failed write stops nothing, because `down` also finds programs by their marks."""

    def __init__(self, state: Path, announcer: Announcer) -> None:
        """`announcer` gets one note when records cannot be written, and the next only after one was written again."""
        self._state = state
        self._announcer = announcer
        self._is_recorded = True
        """Whether the last record was written."""

    def record_children(self, pids: Mapping[str, int]) -> None:
        """Replace the record by this process and these programs. `pids` maps program names to process ids; a process
        that is gone is left out. A failed write raises nothing."""
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
    """Create the state folder if it is missing, and lock it for one `up`. Return a file descriptor that holds the lock
    until the caller closes it or the process ends. Does not wait.

    Raises CommandError, with ExitCode.LOCKED where another `up` holds the lock, and with ExitCode.FAILED where the
    folder, or the record of the other `up`, cannot be used.
    """
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
