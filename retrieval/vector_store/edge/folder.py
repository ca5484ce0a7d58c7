"""Files of an embedded store: a folder per collection, in it a record and the folder of the shard that it names.

    STORE/lock
    STORE/NAME/collection.json    {"version": 1, "name": ..., "dimension": ..., "bm25": ..., "shard": "shard-000002"}
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
from retrieval.vector_store.bm25_options import dump_options, load_options
from retrieval.vector_store.edge.sparse_copy import copy_sparse_file

RECORD: Final = "collection.json"
_RECORD_VERSION: Final = 1
_SHARD: Final = re.compile(r"shard-(\d{6,})")
_DAMAGED: Final = ".damaged"


class RecordError(Exception):
    """A collection's record is missing or malformed. The text says which."""


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """The content of a collection's `collection.json`: its name, dimension and options of BM25, and which shard is
    current."""

    spec: CollectionSpec
    shard: str
    """Name of the shard's folder in the collection's, as `shard-000002`."""


def lock_store(folder: Path) -> int:
    """Create the store's folder where it is missing, lock it, and return the descriptor that holds the lock.

    The lock lasts until this descriptor is closed here and in all child processes that inherited it. Does not wait for
    the lock. Raises BlockingIOError if another program has the lock, and OSError if the folder cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class CollectionFolder:
    """Reads and changes the files of one collection. Methods block, and raise OSError where the disk refuses."""

    def __init__(self, store: Path, name: str) -> None:
        """Name the folder, which need not exist; nothing is read. Raises ValueError for a name that no collection can
        have (see `arguments.check_name`)."""
        check_name(name)
        self.path = store / name
        self._damaged = store / f"{name}{_DAMAGED}"

    @property
    def has_record(self) -> bool:
        """Whether the file `collection.json` exists. A folder without it is no collection. Blocks."""
        return (self.path / RECORD).exists()

    def read_record(self) -> CollectionRecord:
        """Return the collection's record. Raises RecordError where the file is missing or malformed, or names another
        collection. Does not check that the shard exists. Blocks. Raises OSError if the file cannot be read."""
        try:
            record = json.loads((self.path / RECORD).read_text())
            spec = CollectionSpec(record["name"], record["dimension"], load_options(record.get("bm25")))
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
        """Replace `collection.json`, atomically and durably. The collection's folder must exist. Blocks. Raises
        OSError."""
        fields = {
            "version": _RECORD_VERSION,
            "name": record.spec.name,
            "dimension": record.spec.dimension,
            "bm25": dump_options(record.spec.bm25),
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
        """Create an empty folder for a new shard, with the next free number, and return its name. The collection's
        folder is created where it is missing; the store's must exist. Blocks. Raises OSError."""
        self.path.mkdir(exist_ok=True)
        numbers = [int(found[1]) for entry in self.path.iterdir() if (found := _SHARD.fullmatch(entry.name))]
        name = f"shard-{max(numbers, default=0) + 1:06}"
        (self.path / name).mkdir()
        return name

    def copy_shard(self, source: str) -> str:
        """Copy a shard that nobody writes to, and return the copy's name. Blocks, about 0.5 s per GB that is cached.
        Raises OSError after it has removed the copy."""
        name = self.make_shard()
        try:
            shutil.copytree(self.path / source, self.path / name, copy_function=copy_sparse_file, dirs_exist_ok=True)
        except OSError:
            self.remove_shard(name)
            raise
        return name

    def sync_shard(self, shard: str) -> None:
        """Call fsync on the shard's files and folders. What its process still holds in memory is not written. Files
        that vanish meanwhile are skipped. Blocks. Raises OSError."""
        for folder, _, files in os.walk(self.path / shard):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    _sync(Path(folder, name))
            with contextlib.suppress(FileNotFoundError):
                _sync(Path(folder))

    def remove_shard(self, shard: str) -> None:
        """Remove the folder of a shard that nobody has open. Errors are ignored; the next start removes the rest.
        Blocks."""
        shutil.rmtree(self.path / shard, ignore_errors=True)

    def remove_leftovers(self, shard: str) -> None:
        """Remove everything in the collection's folder but `collection.json` and the folder of this shard. Blocks.
        Raises OSError."""
        for entry in self.path.iterdir():
            if entry.name not in (RECORD, shard):
                _remove(entry)

    def remove(self) -> None:
        """Delete the collection's folder, its record first and durably, so that what a killed program leaves is no
        collection. Does nothing if there is no folder. Blocks. Raises OSError."""
        (self.path / RECORD).unlink(missing_ok=True)
        if self.path.exists():
            _sync(self.path)
            shutil.rmtree(self.path)

    def set_aside(self) -> Path:
        """Rename the folder to `NAME.damaged`, so that it is no collection any more, and return the new path. An
        earlier folder of that name is removed. Blocks. Raises OSError."""
        if self._damaged.exists():
            shutil.rmtree(self._damaged)
        self.path.rename(self._damaged)
        return self._damaged


def list_collection_folders(store: Path) -> list[CollectionFolder]:
    """Return the store's folders whose names a collection can have, sorted by name; damaged ones that were renamed are
    not among them. A folder may lack its record. Raises OSError where the store's folder cannot be read. Blocks."""
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
