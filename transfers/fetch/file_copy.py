"""Copying a file of this machine into a partial file."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Final

from controller.schema.errors import RoundhouseError
from transfers.fetch.file_hash import FileHash, hash_file
from transfers.fetch.segment_fetch import FetchProgress, StoppedError
from transfers.sources.base import SourceFile

_CHUNK: Final = 8 * 1024 * 1024


def copy_file(file: SourceFile, partial: Path, progress: FetchProgress, stopped: threading.Event) -> FileHash:
    """Copy a local file into the partial file, over what that has, and return the hash of the copy, which is on disk
    then. `partial` may not exist yet. Blocks.

    Raises:
        RoundhouseError: `models_disk_full`; `source_mismatch` if the file changed meanwhile.
        StoppedError: `stopped` was set.
        OSError: a file cannot be read or written.
    """
    assert file.local_path is not None

    def check_stop() -> None:
        if stopped.is_set():
            raise StoppedError

    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with file.local_path.open("rb") as source, os.fdopen(os.open(partial, flags, 0o600), "w+b", buffering=0) as copy:
        progress.set_done(file, 0)
        copied = 0
        try:
            while count := os.copy_file_range(source.fileno(), copy.fileno(), _CHUNK):
                check_stop()
                copied += count
                progress.set_done(file, copied)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise RoundhouseError(
                    "models_disk_full", f"The disk became full while {file.path} was copied."
                ) from None
            raise
        if copied != file.size:
            raise RoundhouseError("source_mismatch", f"{file.path} changed while it was copied.")
        progress.set_verifying(file)
        os.fsync(copy.fileno())
        return hash_file(copy.fileno(), copied, check_stop)
