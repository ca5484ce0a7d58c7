"""The controller that holds a state folder, as /proc shows it: its environment, and where it stands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.runtimes.process.stat import PROC
from controller.storage.state_dir import LOCK_NAME


@dataclass(frozen=True, slots=True)
class RunningController:
    """What a controller was started with."""

    environment: Mapping[str, str]
    folder: Path
    """Its relative paths begin there."""


def find_controller(state: Path) -> RunningController | None:
    """The process that notes itself in the state folder's lock file; None: there is none, or it is not to be seen.

    In a container, or of another user, it is not.
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
    # The name first: asking what lies behind every descriptor could wait for a lost server.
    return any(
        descriptor.readlink().name == LOCK_NAME and os.path.samestat(descriptor.stat(), file)
        for descriptor in (process / "fd").iterdir()
    )
