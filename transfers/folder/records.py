"""The records of downloads: one JSON file each, so that a restarted program goes on, and knows what it may remove."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from controller.schema.downloads import DownloadRecord
from transfers.folder.rights import adopt_rights

log = logging.getLogger(__name__)

_ID: Final = re.compile(r"dl_[0-9a-f]{24}", re.ASCII)


def make_download_id(reference: str, *, include_pickle: bool) -> str:
    """Return the id of a download, `dl_` and 24 hex digits: always the same for the same `reference` (in its canonical
    form) and `include_pickle`."""
    digest = hashlib.sha256(f"{reference}\n{include_pickle}".encode()).hexdigest()
    return f"dl_{digest[:24]}"


class RecordStore:
    """The records of downloads, one file each in one folder. The folder and the files have the owner and the rights of
    the folder above, because the controller reads them. Methods block on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_all(self) -> list[DownloadRecord]:
        """Return all records, by id. One that cannot be read is left out, with a warning in the log. What a kill left
        of a record that was being written is removed. The folder is made if it is missing. Blocks. Raises OSError."""
        self._make_folder()
        for unfinished in self._folder.glob(".dl_*.new"):
            unfinished.unlink(missing_ok=True)
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
        """Store a record, over one with the same id. It is on disk when this returns; a reader sees the old record or
        the new one. `read_all` must have made the folder. Two threads must not write the same record at the same time.
        Blocks. Raises OSError; the old record is then unchanged."""
        path = self._folder / f"{record.id}.json"
        new_path = path.with_name(f".{path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(new_path, flags, 0o600), "wb") as file:
                file.write(record.model_dump_json(indent=1).encode())
                file.flush()
                adopt_rights(file.fileno(), self._folder)
                os.fsync(file.fileno())
            new_path.replace(path)
        except OSError:
            new_path.unlink(missing_ok=True)
            raise

    def remove(self, download: str) -> None:
        """Remove a record if it is there. Blocks. Raises OSError."""
        (self._folder / f"{download}.json").unlink(missing_ok=True)

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            adopt_rights(descriptor, self._folder.parent)
        finally:
            os.close(descriptor)
