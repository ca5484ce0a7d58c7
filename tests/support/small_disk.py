"""Disks that take nothing more: a file system of a few kilobytes, filled for real, and what needs no root."""

from __future__ import annotations

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.require import require

PAGE_BYTES = 4096


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / ".ballast"

    def fill(self) -> None:
        """Take every page that is left. What is deleted afterwards leaves room again."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * PAGE_BYTES)

    def free(self) -> None:
        """Give the pages back."""
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def mount_small_disk(folder: Path, kib: int = 4096) -> Iterator[SmallDisk]:
    """Mount a disk of `kib` KiB at `folder`, which is made. It is gone afterwards, whoever has files open there."""
    refusal = _mount(folder, kib)
    require("mount", not refusal, f"a small disk cannot be mounted: {refusal}")
    with _mounted(folder) as disk:
        yield disk


@contextlib.contextmanager
def find_small_disk(folder: Path, kib: int) -> Iterator[SmallDisk | None]:
    """The same; None, and the folder as it is, where nothing may be mounted."""
    if _mount(folder, kib):
        yield None
        return
    with _mounted(folder) as disk:
        yield disk


def _mount(folder: Path, kib: int) -> str:
    """Why not; empty: it is mounted."""
    folder.mkdir(mode=0o700, parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "roundhouse-test", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if mounted.returncode == 0 else mounted.stderr.strip() or f"mount ended with {mounted.returncode}"


@contextlib.contextmanager
def _mounted(folder: Path) -> Iterator[SmallDisk]:
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, capture_output=True)


@contextlib.contextmanager
def no_space(after_bytes: int = 0) -> Iterator[None]:
    """No file of this process may grow beyond `after_bytes`: the nearest thing to a full disk that needs no mount."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
