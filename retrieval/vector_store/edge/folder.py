"""Files of an embedded store: a folder per collection, in it a record and the folder of the shard that it names.

    STORE/lock
    STORE/NAME/collection.json    {"version": 1, "name": ..., "dimension": ..., "shard": "shard-000002"}
    STORE/NAME/shard-000002/      Qdrant Edge's files
    STORE/NAME/shard-000003/      a copy that is being optimized, or what a killed program left
    STORE/NAME.damaged/           a collection that could not be opened

The record is replaced atomically, so at every moment it names one whole shard. Everything else is removed at the start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retrieval.vector_store.arguments import COLLECTION_NAME, check_name
from retrieval.vector_store.base import CollectionSpec

RECORD: Final = "collection.json"
_RECORD_VERSION: Final = 1
_SHARD: Final = re.compile(r"shard-(\d{6,})")
_DAMAGED: Final = ".damaged"


class RecordError(Exception):
    """A collection's record is missing or malformed. The text says which."""


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """What a collection's folder says of itself."""

    spec: CollectionSpec
    shard: str
    """Name of the shard's folder."""


def lock_store(folder: Path) -> int:
    """Create the store's folder where it is missing, and lock it. Return the descriptor that holds the lock, which
    child processes may inherit. Raises BlockingIOError where another program has it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class CollectionFolder:
    """The folder of one collection. Methods block."""

    def __init__(self, store: Path, name: str) -> None:
        """Name the folder; nothing is read. Raises ValueError for a name that no collection can have."""
        check_name(name)
        self.path = store / name
        self._damaged = store / f"{name}{_DAMAGED}"

    @property
    def has_record(self) -> bool:
        """Whether there is a record, so that the folder is a collection."""
        return (self.path / RECORD).exists()

    def read_record(self) -> CollectionRecord:
        """Return the collection's record. Raises RecordError."""
        try:
            record = json.loads((self.path / RECORD).read_text())
            spec = CollectionSpec(record["name"], record["dimension"])
            shard = record["shard"]
            is_valid = (
                record["version"] == _RECORD_VERSION
                and spec.name == self.path.name
                and (spec.dimension is None or (type(spec.dimension) is int and spec.dimension > 0))
                and _SHARD.fullmatch(shard)
            )
        except FileNotFoundError as error:
            raise RecordError(f"{RECORD} is missing") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{RECORD} is malformed") from error
        if not is_valid:
            raise RecordError(f"{RECORD} is malformed")
        return CollectionRecord(spec, shard)

    def write_record(self, record: CollectionRecord) -> None:
        """Make this the collection's record, atomically and durably."""
        fields = {
            "version": _RECORD_VERSION,
            "name": record.spec.name,
            "dimension": record.spec.dimension,
            "shard": record.shard,
        }
        new = self.path / f"{RECORD}.new"
        with new.open("w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / RECORD)
        _sync(self.path)
        _sync(self.path.parent)

    def make_shard(self) -> str:
        """Create an empty folder for a new shard, and return its name. The collection's folder is made where it is
        missing."""
        self.path.mkdir(exist_ok=True)
        numbers = [int(found[1]) for entry in self.path.iterdir() if (found := _SHARD.fullmatch(entry.name))]
        name = f"shard-{max(numbers, default=0) + 1:06}"
        (self.path / name).mkdir()
        return name

    def copy_shard(self, source: str) -> str:
        """Copy a shard that nobody writes to, and return the copy's name. Takes about 0.5 s per GB that is cached.
        Raises OSError, with nothing left of the copy."""
        name = self.make_shard()
        try:
            shutil.copytree(self.path / source, self.path / name, dirs_exist_ok=True)
        except OSError:
            self.remove_shard(name)
            raise
        return name

    def sync_shard(self, shard: str) -> None:
        """Write the shard's files to the disk, as far as its process has written them."""
        for folder, _, files in os.walk(self.path / shard):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    _sync(Path(folder, name))
            with contextlib.suppress(FileNotFoundError):
                _sync(Path(folder))

    def remove_shard(self, shard: str) -> None:
        """Remove a shard that nobody has open."""
        shutil.rmtree(self.path / shard, ignore_errors=True)

    def remove_leftovers(self, shard: str) -> None:
        """Remove everything but the record and this shard."""
        for entry in self.path.iterdir():
            if entry.name not in (RECORD, shard):
                _remove(entry)

    def remove(self) -> None:
        """Delete the collection. What a killed program leaves of it has no record, so it is no collection."""
        (self.path / RECORD).unlink(missing_ok=True)
        if self.path.exists():
            _sync(self.path)
            shutil.rmtree(self.path)

    def set_aside(self) -> Path:
        """Rename the folder, so that it is no collection any more, and return its new place. One that was set aside
        earlier is removed."""
        if self._damaged.exists():
            shutil.rmtree(self._damaged)
        self.path.rename(self._damaged)
        return self._damaged


def list_collection_folders(store: Path) -> list[CollectionFolder]:
    """Return the folders in a store that may be collections, by name."""
    names = sorted(entry.name for entry in store.iterdir() if entry.is_dir() and COLLECTION_NAME.fullmatch(entry.name))
    return [CollectionFolder(store, name) for name in names]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
