"""Entries of the journal about downloads: one when a download begins, and one when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import JsonValue

from controller.journal.entry import NewEntry
from controller.journal.event_log import EventLog
from controller.redaction.patterns import mask_text
from controller.schema.downloads import FINAL_STATES, Download, Removal

_LOOKED_BACK: Final = 500
"""Entries of earlier runs of the controller that are read, to know which downloads were under way at its end."""
_STARTED: Final = "started"
_CONTROLLER: Final = "controller"


class DownloadLog:
    """Records in the journal what becomes of downloads, each step once, also over restarts of the controller."""

    def __init__(self, journal: EventLog, clock: Callable[[], float]) -> None:
        """Read the newest entries about downloads from the journal, to know which starts and ends it has. `clock`
        returns Unix time in seconds."""
        self._journal = journal
        self._clock = clock
        self._told: dict[str, str] = {}
        """Id of a download to the last step that the journal has."""
        for entry in reversed(journal.read_page(("download",), None, None, _LOOKED_BACK)):
            download, step = entry.details.get("id"), entry.details.get("step")
            if isinstance(download, str) and isinstance(step, str):
                self._told[download] = step

    def note_order(self, download: Download, actor: str) -> None:
        """Record that `actor` ordered a download, and that it thereby began. Secrets in its reference are masked. A
        failed write raises nothing."""
        self._record(download, _STARTED, actor, f"download of {download.reference} started by {actor}")

    def note_download(self, download: Download) -> None:
        """Record the start of a download that has not ended, or the end of one that has, unless the journal has that
        entry. An end is left out if the journal does not have the start. A failed write raises nothing."""
        told = self._told.get(download.id)
        if download.state not in FINAL_STATES:
            if told != _STARTED:
                self._record(download, _STARTED, _CONTROLLER, f"download of {download.reference} started")
        elif told == _STARTED:
            self._record(download, download.state, _CONTROLLER, _end_words(download))

    def note_cancellation(self, download: Download, actor: str) -> None:
        """Record that `actor` cancelled a download. Nothing is recorded if its state is not `cancelled`, or if the
        journal does not have its start or already has its end. A failed write raises nothing."""
        if download.state == "cancelled" and self._told.get(download.id) == _STARTED:
            self._record(download, "cancelled", actor, f"download of {download.reference} cancelled by {actor}")

    def note_removal(self, name: str, removal: Removal, actor: str) -> None:
        """Record that `actor` removed files of downloads from the models folder. `name`: the path or the reference that
        was to be removed. A failed write raises nothing."""
        count = len(removal.removed)
        files, mib = "1 file" if count == 1 else f"{count} files", removal.freed_bytes / 2**20
        message = f"{name}: {files} removed by {actor}, {mib:.1f} MiB freed"
        details: dict[str, JsonValue] = {"step": "removed", "removed": list(removal.removed)}
        self._append(actor, message, details)

    def _record(self, download: Download, step: str, actor: str, message: str) -> None:
        self._told[download.id] = step
        details: dict[str, JsonValue] = {
            "id": download.id,
            "step": step,
            "reference": mask_text(download.reference),
            "pinned": None if download.pinned is None else mask_text(download.pinned),
            "total_bytes": download.total_bytes,
        }
        if download.error is not None:
            details["code"] = download.error.code
        self._append(actor, message, details)

    def _append(self, actor: str, message: str, details: dict[str, JsonValue]) -> None:
        entry = NewEntry("download", actor, mask_text(message), None, details)
        self._journal.record_entries([entry], self._clock())


def _end_words(download: Download) -> str:
    if download.state == "failed":
        reason = download.error.message if download.error is not None else "no reason is known"
        return f"download of {download.reference} failed: {reason}"
    return f"download of {download.reference} {download.state}"
