"""One file per replica: what a restarted controller knows engines by. Other instances' records are never touched."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.process.stat import Process
from controller.state import ReplicaId
from controller.storage.atomic_write import write_atomic

SCHEMA_VERSION: Final = 1

log = logging.getLogger(__name__)


class ReplicaRecord(BaseModel):
    """A replica's start. Written before the engine is spawned, and again with its pid. Holds no secret."""

    model_config = ConfigDict(frozen=True, strict=True)

    schema_version: Literal[1] = SCHEMA_VERSION
    instance: str
    name: str
    model: str
    index: int
    spec_hash: str
    attempt: int
    start_id: str
    """Random, and in the engine's environment: processes of this start carry it."""
    boot_id: str
    host: str
    port: int
    argv: tuple[str, ...]
    claims: dict[str, int]
    created_at: float
    pid: int | None = None
    """None: the start was interrupted, or is under way."""
    start_ticks: int | None = None
    started_at: float | None = None
    ended: bool = False
    """Every process of it was seen gone."""
    exit_code: int | None = None

    @property
    def id(self) -> ReplicaId:
        """Whose attempt it is."""
        return ReplicaId(self.model, self.index, self.spec_hash, self.attempt)

    @property
    def leader(self) -> Process | None:
        """The engine's process."""
        if self.pid is None or self.start_ticks is None:
            return None
        return Process(self.pid, self.start_ticks)


class Records:
    """The folder of records. Thread-safe; its folder belongs to one controller at a time (the state folder's lock)."""

    def __init__(self, folder: Path, instance: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._instance = instance
        self._lock = threading.Lock()

    def read_records(self) -> list[ReplicaRecord]:
        """Every record of this instance.

        Raises RuntimeUnavailableError when one cannot be read, and OSError when the folder cannot: it is unknown then.
        """
        with self._lock:
            return [record for path in self._paths() if (record := self._read(path)) is not None]

    def read_record(self, name: str) -> ReplicaRecord | None:
        """None: there is none, or it is another instance's."""
        with self._lock:
            return self._read(self._path(name))

    def create_record(self, record: ReplicaRecord) -> bool:
        """Whether it was new; an existing one is left as it is."""
        with self._lock:
            path = self._path(record.name)
            if path.exists():
                return False
            write_atomic(path, record.model_dump_json(indent=1).encode())
            return True

    def update_record(self, name: str, **changes: Any) -> ReplicaRecord | None:
        """Change a record that still exists; returns it as it is now.

        Should it not be writable, as on a full disk, it is returned changed and stays as it was: it is what can be seen
        of the engine, and is seen again next time.
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
        """The engine runs."""
        return self.update_record(name, pid=leader.pid, start_ticks=leader.start_ticks, started_at=time.time())

    def remove_record(self, name: str) -> None:
        """Forget a replica."""
        with self._lock:
            path = self._path(name)
            if self._read(path) is not None:
                path.unlink()

    def _paths(self) -> Iterator[Path]:
        # Not glob, which finds nothing in a folder that is away or cannot be read: unknown is not empty.
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
            if not self._folder.is_dir():  # as on a volume that is not mounted: nobody knows what runs
                raise
            return None
        except ValidationError as error:
            fields = ", ".join(sorted({str(each["loc"][0]) for each in error.errors() if each["loc"]})) or "not JSON"
            raise RuntimeUnavailableError(
                f"{path} is no record of schema version {SCHEMA_VERSION} ({fields}): an engine may run that cannot be "
                "told. Start the version of Roundhouse that wrote it, or stop its process and delete the file"
            ) from error
        return record if record.instance == self._instance else None
