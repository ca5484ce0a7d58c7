"""Reads the records of downloads in the models folder, which `transfers` writes: no network is needed for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from common.model_reference import InvalidReferenceError, parse_reference
from controller.schema.downloads import RECORDS_FOLDER, DownloadRecord

log = logging.getLogger(__name__)


def read_records(models_folder: Path) -> list[DownloadRecord]:
    """Return the records of downloads into a models folder, sorted by id. Blocks. What cannot be read is left out, with
    a warning in the log; without any, the list is empty."""
    records = []
    try:
        paths = sorted((models_folder / RECORDS_FOLDER).glob("dl_*.json"))
    except OSError as error:
        log.warning("the records of downloads cannot be listed: %s", error)
        return []
    for path in paths:
        try:
            records.append(DownloadRecord.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            continue  # it was just removed
        except (OSError, ValidationError) as error:
            log.warning("the record of a download cannot be read: %s: %s", path, error)
    return records


def find_by_path(records: Iterable[DownloadRecord], path: str) -> list[DownloadRecord]:
    """Return the downloads that put a file at `path`, or a file below the folder `path`, into the models folder. `path`
    is relative to the models folder."""
    return [record for record in records if any(is_below(each.path, path) for each in record.placed)]


def find_by_reference(records: Sequence[DownloadRecord], text: str) -> DownloadRecord | None:
    """Return the newest download that was ordered by the reference `text`, else the newest whose pinned reference it
    is. None: there is neither, or `text` is no reference."""
    try:
        canonical = str(parse_reference(text))
    except InvalidReferenceError:
        return None
    matching = [record for record in records if canonical in (record.reference, record.pinned)]
    return max(matching, key=lambda each: (each.reference == canonical, each.created_at), default=None)


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or lies below it. Only the texts are compared; the disk is not read."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
