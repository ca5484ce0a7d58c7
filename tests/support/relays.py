"""The relay of a host, as its process is found."""

from __future__ import annotations

from pathlib import Path


def find_relay(folder: Path) -> int | None:
    """The process that listens for the table in this folder; None: there is none."""
    try:
        inode = (folder / "relay.lock").stat().st_ino
    except FileNotFoundError:
        return None
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and int(fields[5].rpartition(":")[2]) == inode:
            return int(fields[4])
    return None
