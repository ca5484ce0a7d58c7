"""Listing and removing what downloads put into the models folder: nothing else, and nothing that was changed since."""

from __future__ import annotations

import os
from collections.abc import Iterable

from controller.schema.downloads import DownloadRecord, PlacedFile, Removal, StoredFile
from controller.schema.errors import RoundhouseError
from transfers.downloads.board import DownloadBoard
from transfers.downloads.present_files import has_kept_state, is_unchanged
from transfers.folder.models_folder import ModelsFolder


class StoredFiles:
    """The files of all downloads. Safe for threads."""

    def __init__(self, board: DownloadBoard, folder: ModelsFolder) -> None:
        self._board = board
        self._folder = folder

    def list_files(self) -> list[StoredFile]:
        """Return the files that downloads put into the models folder, as recorded, sorted by path. A file that several
        downloads have comes once, with the download that was ordered first. `is_unchanged` goes by size and time, and
        is False for a file that is gone; the content is not read. Blocks on the disk. Raises OSError."""
        found: dict[str, tuple[DownloadRecord, PlacedFile]] = {}
        for record, placed in sorted(self._board.list_placed(), key=lambda pair: (pair[0].created_at, pair[0].id)):
            found.setdefault(placed.path, (record, placed))
        return [
            StoredFile(
                path=path,
                size=placed.size,
                sha256=placed.sha256,
                download=record.id,
                reference=record.pinned or record.reference,
                is_unchanged=has_kept_state(self._folder, placed),
            )
            for path, (record, placed) in sorted(found.items())
        ]

    def remove_download(self, download: str) -> Removal:
        """Remove the files of a download, and forget the download. Files that another download has, too, stay. Return
        what was removed. Blocks; may read whole files, to see whether they were changed.

        Raises:
            RoundhouseError: `download_not_found`; `models_file_kept`: it is under way, or a file of it was changed.
                Nothing was removed.
            OSError: the models folder cannot be written. Some of the files may be removed; the download is still known.
        """
        self._board.find(download)
        mine = [placed for record, placed in self._board.list_placed() if record.id == download]
        others = {placed.path for record, placed in self._board.list_placed() if record.id != download}
        return self._remove(
            [each for each in mine if each.path not in others],
            download,
            sorted(each.path for each in mine if each.path in others),
        )

    def remove_path(self, path: str) -> Removal:
        """Remove a file that a download put into the models folder, or all such files below a folder. `path` is below
        the models folder. Return what was removed. Blocks; may read whole files, to see whether they were changed.

        Raises:
            RoundhouseError: `models_file_kept`: no download put it there, one that has it is under way, or it was
                changed. Nothing was removed.
            OSError: the models folder cannot be written. Some of the files may be removed.
        """
        named = path.rstrip("/")
        found = {
            placed.path: placed
            for _, placed in self._board.list_placed()
            if placed.path == named or placed.path.startswith(f"{named}/")
        }
        if not found:
            raise _kept(f"No download put {path!r:.300} into the models folder.")
        return self._remove(list(found.values()), None, [])

    def _remove(self, files: list[PlacedFile], download: str | None, kept: list[str]) -> Removal:
        """`download`: forget this one; None: take the files out of all downloads."""
        present = {each.path: status for each in files if (status := self._check_file(each)) is not None}
        with self._board.hold_still():
            self._check_rest(each.path for each in files)
            if download is not None and self._board.is_running(download):
                raise _kept("The download is under way: cancel it first.")
            for path, status in present.items():
                if not _is_same_state(status, self._folder.find_file(path)):
                    raise _kept(f"{path!r:.300} was changed just now.")
            for path in present:
                self._folder.remove_file(path)
            self._board.forget_files({each.path for each in files})
            if download is not None:
                self._board.forget(download)
        return Removal(removed=sorted(present), kept=kept, freed_bytes=sum(each.st_size for each in present.values()))

    def _check_rest(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._board.is_under_way(path):
                raise _kept(f"A download that is under way has {path!r:.300}: cancel it first.")

    def _check_file(self, placed: PlacedFile) -> os.stat_result | None:
        """Return the status of a file to remove; None: it is not there. Raises RoundhouseError `models_file_kept` for
        one that was changed."""
        try:
            status = self._folder.find_file(placed.path)
        except RoundhouseError:
            raise _kept(f"{placed.path!r:.300} is something else than was downloaded.") from None
        if status is not None and not is_unchanged(self._folder, placed):
            raise _kept(f"{placed.path!r:.300} was changed since it was downloaded.")
        return status


def _is_same_state(before: os.stat_result, now: os.stat_result | None) -> bool:
    return now is not None and (before.st_ino, before.st_size, before.st_mtime_ns) == (
        now.st_ino,
        now.st_size,
        now.st_mtime_ns,
    )


def _kept(message: str) -> RoundhouseError:
    return RoundhouseError("models_file_kept", message)
