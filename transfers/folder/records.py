"""The records of downloads: one JSON file each, so that a restarted program goes on, and knows what it may remove."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.atomic_write import write_atomic
from controller.schema.downloads import DownloadState
from controller.schema.errors import ErrorBody

log = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
_ID: Final = re.compile(r"dl_[0-9a-f]{24}", re.ASCII)


class PlacedFile(BaseModel):
    """A file that a download put into the models folder."""

    model_config = ConfigDict(frozen=True)

    path: str = Field(description="Path below the models folder.")
    size: int = Field(description="Bytes.")
    sha256: str = Field(description="Hash of the content.")
    mtime_ns: int = Field(description="Time of the last change, in ns, when it was put there.")


class DownloadRecord(BaseModel):
    """What is kept of a download."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = SCHEMA_VERSION
    id: str
    reference: str
    include_pickle: bool = False
    pinned: str | None = None
    state: DownloadState = "queued"
    main: str | None = None
    projector: str | None = None
    placed: list[PlacedFile] = Field(default_factory=list)
    error: ErrorBody | None = None
    created_at: float
    ended_at: float | None = None


def make_download_id(reference: str, *, include_pickle: bool) -> str:
    """Return the id of a download: the same for the same canonical reference."""
    digest = hashlib.sha256(f"{reference}\n{include_pickle}".encode()).hexdigest()
    return f"dl_{digest[:24]}"


class RecordStore:
    """The records in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_all(self) -> list[DownloadRecord]:
        """Return all records, by id. One that cannot be read is left out, with a warning in the log. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        records = []
        for path in sorted(self._folder.glob("dl_*.json")):
            try:
                record = DownloadRecord.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("the record of a download cannot be read: %s: %s", path, error)
                continue
            if record.id == path.stem and _ID.fullmatch(record.id):
                records.append(record)
        return records

    def write(self, record: DownloadRecord) -> None:
        """Store a record, on disk when this returns. Raises OSError."""
        write_atomic(self._folder / f"{record.id}.json", record.model_dump_json(indent=1).encode())

    def remove(self, download: str) -> None:
        """Remove a record, if it is there. Raises OSError."""
        (self._folder / f"{download}.json").unlink(missing_ok=True)
