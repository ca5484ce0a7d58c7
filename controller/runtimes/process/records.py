"""Records of replicas, one file each, by which a restarted controller finds its engines.

Records of other instances are never changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from common.atomic_write import write_atomic
from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.process.stat import Process
from controller.state import ReplicaId

SCHEMA_VERSION: Final = 1
COPY_NAME: Final = ".replica.json"
"""Name of a record's copy in the engine's working folder."""

log = logging.getLogger(__name__)


class ReplicaRecord(BaseModel):
    """One start of a replica. Written before the engine is spawned, and again with its pid. It holds no secret.

    Times are Unix times in seconds.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    schema_version: Literal[1] = SCHEMA_VERSION
    instance: str
    name: str
    model: str
    index: int
    spec_hash: str
    attempt: int
    start_id: str
    """Random id in the environment of the engine, which identifies the processes of this start."""
    boot_id: str
    """`boot_id()` at the start. After a reboot, pids and start times in the record mean nothing."""
    host: str
    port: int
    argv: tuple[str, ...]
    claims: dict[str, int]
    created_at: float
    pid: int | None = None
    """Pid of the engine. None: the start is under way, or was interrupted."""
    start_ticks: int | None = None
    """Start time of the engine's process, as in `Process`."""
    started_at: float | None = None
    ended: bool = False
    """True once every process of the replica was found gone."""
    exit_code: int | None = None
    """Exit code of the engine, negative for a signal. None: it runs, or the code is not known."""

    @property
    def id(self) -> ReplicaId:
        """The replica's id, including the attempt."""
        return ReplicaId(self.model, self.index, self.spec_hash, self.attempt)

    @property
    def leader(self) -> Process | None:
        """The engine's process; None while its pid is not known."""
        if self.pid is None or self.start_ticks is None:
            return None
        return Process(self.pid, self.start_ticks)


def keep_copy(record: ReplicaRecord, work_dir: Path) -> None:
    """Copy the record of a running engine to the engine's working folder, unless there is a copy. Blocks. Does nothing
    if the copy cannot be written."""
    path = work_dir / COPY_NAME
    with suppress(OSError):
        if not path.exists():
            write_atomic(path, record.model_dump_json(indent=1).encode(), durable=False)


def read_copies(work: Path, instance: str) -> list[ReplicaRecord]:
    """Return the copies of this instance's records in the working folders below `work`, also of engines that have
    ended. Leaves out what cannot be read. Blocks."""
    copies = []
    for path in work.glob(f"rh-{instance}-*/{COPY_NAME}"):
        with suppress(OSError, ValidationError):
            copy = ReplicaRecord.model_validate_json(path.read_bytes())
            if (copy.instance, copy.name) == (instance, path.parent.name):
                copies.append(copy)
    return copies


class Records:
    """The folder of records. Thread-safe. Only the controller that holds the state folder's lock may use it. Making one
    creates the folder, and raises OSError where it cannot be made."""

    def __init__(self, folder: Path, instance: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._instance = instance
        self._lock = threading.Lock()

    def read_records(self) -> list[ReplicaRecord]:
        """Return every record of this instance, in order of replica names, also those of ended replicas. Blocks.

        Raises RuntimeUnavailableError if a record cannot be parsed, and OSError if the folder or a record cannot be
        read. It is then unknown which engines run.
        """
        with self._lock:
            return [record for path in self._paths() if (record := self._read(path)) is not None]

    def read_record(self, name: str) -> ReplicaRecord | None:
        """Return the record of one replica; None if there is none, or if the file names another instance. Blocks.

        Raises RuntimeUnavailableError if the record cannot be parsed, OSError if it cannot be read, and ValueError if
        `name` is not a name of this instance's replicas.
        """
        with self._lock:
            return self._read(self._path(name))

    def create_record(self, record: ReplicaRecord) -> bool:
        """Write a new record, and return True once it is on disk. Return False, and write nothing, if there is a record
        of that name. Blocks. Raises OSError if it cannot be written, and ValueError for a name of another instance."""
        with self._lock:
            path = self._path(record.name)
            if path.exists():
                return False
            write_atomic(path, record.model_dump_json(indent=1).encode())
            return True

    def update_record(self, name: str, **changes: Any) -> ReplicaRecord | None:
        """Change fields of a record, and return the changed record. None: there is no such record any more. `changes`
        are not validated. Blocks. Raises RuntimeUnavailableError if the record cannot be parsed, OSError if it
        cannot be read, and ValueError for a name of another instance.

        If the file cannot be written, as on a full disk, the changed record is returned all the same. The changes are
        observations of the engine, which the next observation makes again.
        """
        with self._lock:
            path = self._path(name)
            record = self._read(path)
            if record is None:
                return None
            changed_record = record.model_copy(update=changes)
            try:
                if changed_record != record:
                    write_atomic(path, changed_record.model_dump_json(indent=1).encode())
            except OSError as error:
                log.warning("%s cannot be written: %s", path, error.strerror or error)
            return changed_record

    def note_started(self, name: str, leader: Process) -> ReplicaRecord | None:
        """Write into a record that the engine was started as the process `leader`, now. Blocks. Returns the changed
        record, also if it cannot be written, which is only logged; None: there is no such record any more. Raises
        RuntimeUnavailableError if the record cannot be parsed, OSError if it cannot be read, and ValueError for a
        name of another instance."""
        return self.update_record(name, pid=leader.pid, start_ticks=leader.start_ticks, started_at=time.time())

    def remove_record(self, name: str) -> None:
        """Delete the record of a replica. Does nothing if there is none. Blocks. Raises RuntimeUnavailableError if the
        record cannot be parsed, OSError if it cannot be read or deleted, and ValueError for a name of another
        instance."""
        with self._lock:
            path = self._path(name)
            if self._read(path) is not None:
                path.unlink()

    def _paths(self) -> Iterator[Path]:
        # Not glob, which finds nothing in a folder that is missing or unreadable: unknown is not empty.
        own_paths = (path for path in self._folder.iterdir() if path.name.startswith(f"rh-{self._instance}-"))
        yield from sorted(path for path in own_paths if path.suffix == ".json")

    def _path(self, name: str) -> Path:
        if not name.startswith(f"rh-{self._instance}-") or "/" in name:
            raise ValueError(f"{name!r} is not a replica of instance {self._instance}")
        return self._folder / f"{name}.json"

    def _read(self, path: Path) -> ReplicaRecord | None:
        try:
            record = ReplicaRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            if not self._folder.is_dir():  # as on a volume that is not mounted: it is unknown what runs
                raise
            return None
        except ValidationError as error:
            fields = ", ".join(sorted({str(each["loc"][0]) for each in error.errors() if each["loc"]})) or "not JSON"
            raise RuntimeUnavailableError(
                f"{path} is no record of schema version {SCHEMA_VERSION} ({fields}): an engine may run that cannot be "
                "told. Start the version of Roundhouse that wrote it, or stop its process and delete the file"
            ) from error
        return record if record.instance == self._instance else None
