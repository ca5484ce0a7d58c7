"""Environment and working folder of the controller that holds a state folder, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.runtimes.process.stat import PROC
from controller.storage.state_dir import LOCK_NAME


@dataclass(frozen=True, slots=True)
class RunningController:
    """Environment and working folder of a running controller, as its process was started."""

    environment: Mapping[str, str]
    folder: Path
    """Working folder, from which relative paths of the controller's settings start."""


def find_controller(state: Path) -> RunningController | None:
    """Return the controller whose process id is in the lock file of the state folder.

    None means that no such process is visible: none runs, or it runs in a container or as another user. A process that
    does not have that lock file open does not count, so a reused process id misleads nobody. Raises nothing.
    """
    lock_path = state / LOCK_NAME
    try:
        process = PROC / str(int(lock_path.read_text()))
        if not _has_open(process, lock_path.stat()):
            return None
        content = (process / "environ").read_bytes().decode(errors="replace")
        folder = (process / "cwd").readlink()
    except (OSError, ValueError):
        return None
    pairs = (entry.partition("=") for entry in content.split("\0") if entry)
    return RunningController({name: value for name, _, value in pairs}, folder)


def _has_open(process: Path, file: os.stat_result) -> bool:
    # Compare the name first: a stat of every open file could block on a lost file server.
    return any(
        descriptor.readlink().name == LOCK_NAME and os.path.samestat(descriptor.stat(), file)
        for descriptor in (process / "fd").iterdir()
    )
