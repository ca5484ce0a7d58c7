"""How far a download is, told by the threads that fetch and read by those that answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.schema.downloads import Download, DownloadFile, DownloadRecord, DownloadState
from transfers.downloads.speed import SpeedMeter
from transfers.sources.base import Resolution, SourceFile


@dataclass(slots=True)
class _FileProgress:
    target: str
    size: int
    sha256: str | None
    done_bytes: int = 0


class DownloadProgress:
    """The progress of one run of a download. Implements `transfers.fetch.segment_fetch.FetchProgress`. Safe for
    threads. `set_files` is called before any method that takes a file."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: returns seconds, and never goes back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._files: dict[str, _FileProgress] = {}
        self._speed = SpeedMeter()
        self._waiting: str | None = None
        self._state: DownloadState | None = None

    def set_files(self, resolution: Resolution) -> None:
        """Note the files that the download consists of, none of them here yet. Replaces the files of an earlier
        call."""
        with self._lock:
            self._files = {
                each.path: _FileProgress(resolution.target_of(each), each.size, each.sha256)
                for each in resolution.files
            }

    def set_state(self, state: DownloadState) -> None:
        """Note what the run does now, which views show in place of the record's state."""
        with self._lock:
            self._state = state

    def set_done(self, file: SourceFile, done_bytes: int) -> None:
        """See `FetchProgress.set_done`. Also sets the state `downloading`. Raises KeyError for a file that `set_files`
        did not get."""
        with self._lock:
            self._files[file.path].done_bytes = done_bytes
            self._state = "downloading"

    def add_done(self, file: SourceFile, added_bytes: int) -> None:
        """See `FetchProgress.add_done`. Raises KeyError for a file that `set_files` did not get."""
        with self._lock:
            self._files[file.path].done_bytes += added_bytes

    def set_waiting(self, reason: str | None) -> None:
        """See `FetchProgress.set_waiting`."""
        with self._lock:
            self._waiting = reason

    def set_verifying(self, file: SourceFile) -> None:
        """See `FetchProgress.set_verifying`. Sets the state `verifying`."""
        with self._lock:
            self._state = "verifying"

    def build_view(self, record: DownloadRecord) -> Download:
        """Return the download as it is now: the record with this run's state, files and speed. Each call also takes a
        sample for the speed, which is None before the second call."""
        with self._lock:
            files = [
                DownloadFile(path=each.target, size=each.size, done_bytes=each.done_bytes, sha256=each.sha256)
                for each in self._files.values()
            ]
            total, done = sum(each.size for each in files), sum(each.done_bytes for each in files)
            self._speed.add_sample(self._clock(), done)
            speed = self._speed.measure()
            return build_view(
                record.model_copy(update={"state": self._state or record.state}),
                files,
                bytes_per_s=speed,
                remaining_s=(total - done) / speed if speed else None,
                waiting=self._waiting,
            )


def build_view(
    record: DownloadRecord,
    files: Sequence[DownloadFile],
    *,
    bytes_per_s: float | None = None,
    remaining_s: float | None = None,
    waiting: str | None = None,
) -> Download:
    """Return a download as the API answers it, with the sums of the files' bytes. `bytes_per_s`: its speed; None:
    unknown. `remaining_s`: seconds until its end; None: unknown. `waiting`: why nothing comes just now; None: it does
    not wait."""
    return Download(
        id=record.id,
        reference=record.reference,
        pinned=record.pinned,
        state=record.state,
        files=list(files),
        main=record.main,
        projector=record.projector,
        total_bytes=sum(each.size for each in files),
        done_bytes=sum(each.done_bytes for each in files),
        bytes_per_s=bytes_per_s,
        remaining_s=remaining_s,
        waiting=waiting,
        has_finished=record.has_finished,
        error=record.error,
        created_at=record.created_at,
        ended_at=record.ended_at,
    )
