"""Writing whole files so that a crash leaves the old content or the new one."""

from __future__ import annotations

import os
from pathlib import Path

from common.private_files import PRIVATE_MODE, give_to_owner


def write_atomic(
    path: Path, content: bytes, *, durable: bool = True, mode: int = PRIVATE_MODE, is_given_to_owner: bool = False
) -> None:
    """Replace a file, or create it: other processes see the old content or the new one, never a part. Blocks.

    `durable`: the content is on disk before it replaces the old one, so that a power cut leaves one of the two. `mode`:
    the permissions of the new file, whatever those of the old one and the umask are; by default its owner alone may
    read it. `is_given_to_owner`: see `give_to_owner`. The file's folder must exist. A symbolic link at `path` is itself
    replaced. Raises OSError if the file cannot be written; the old file is then unchanged. Threads must not write the
    same path at the same time. A process that is killed in between may leave `.NAME.PID.new` beside the file.
    """
    new_path = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            if is_given_to_owner:
                give_to_owner(new_path)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        new_path.replace(path)
    except OSError:
        new_path.unlink(missing_ok=True)
        raise


def overwrite(path: Path, content: bytes) -> None:
    """Write over an existing file in place, and wait until the content is on disk.

    Use it where a full disk has no room for the second file of `write_atomic`.

    The content must be shorter than a page (4 KiB), which is not checked. A process that is killed in between may leave
    the new content followed by the rest of a longer old one, and a power cut may leave neither. Raises OSError if the
    file does not exist or cannot be written; the old content is unchanged unless the error comes after the write.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
