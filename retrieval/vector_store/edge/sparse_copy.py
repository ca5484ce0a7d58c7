"""Copies of files with holes: Qdrant Edge makes files of 32 MiB each, of which small collections fill little."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def copy_sparse_file(source: str, target: str) -> str:
    """Copy a file that nobody writes to, and leave holes where it has holes. Return `target`; it is replaced where it
    exists. For `shutil.copytree`. Blocks.

    Raises:
        OSError: the source is no regular file, or one of both cannot be read or written.
    """
    if not stat.S_ISREG(Path(source).stat().st_mode):
        raise OSError(errno.EINVAL, "no regular file", source)  # opening a pipe would wait for its writer
    with Path(source).open("rb") as read, Path(target).open("wb") as write:
        size = os.fstat(read.fileno()).st_size
        os.ftruncate(write.fileno(), size)
        for start, end in _find_data(read.fileno(), size):
            _copy_range(read.fileno(), write.fileno(), start, end)
    return target


def _find_data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges that are no holes. A file system without holes has one, the whole file."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole to the end
                return
            raise
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    os.lseek(target, start, os.SEEK_SET)
    while start < end:
        copied = os.sendfile(target, source, start, end - start)
        if copied == 0:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        start += copied
