"""Finds the processes of `roundhouse up` in /proc, where `up.json` does not list them.

`up` keeps `up.lock` of its state folder open. Its children carry the folder's device and inode numbers in their
environment. The folder's path would not do: it may be the same inside a container, and is out of date once the folder
is moved.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from controller.cli.up.record import LOCK_NAME, ProcessRecord, read_record
from controller.cli.up.supervisor import ChildSpec
from controller.runtimes.process.groups import has_variable
from controller.runtimes.process.stat import PROC, list_stats

MARK_ENV: Final = "ROUNDHOUSE_UP_CHILD"
"""Environment variable of a child, with its name and the state folder of its `up`."""


def mark_variables(state: Path, name: str) -> dict[str, str]:
    """Return the environment variables to start the child `name` (`controller`, `gateway`) of an `up` with, so that
    `find_children` finds the child. `state`: the state folder of the `up`, which may be moved later.

    Raises OSError: the state folder does not exist or cannot be reached.
    """
    stat = state.stat()
    return {MARK_ENV: f"{name}:{stat.st_dev}:{stat.st_ino}"}


def mark_specs(state: Path, specs: Iterable[ChildSpec]) -> list[ChildSpec]:
    """Return copies of the specs with the variables of `mark_variables` added to their environments.

    Raises OSError: the state folder does not exist or cannot be reached.
    """
    return [replace(spec, env={**spec.env, **mark_variables(state, spec.name)}) for spec in specs]


def find_up(state: Path) -> ProcessRecord | None:
    """Return the `up` (or `service run`) that runs on this state folder, by its record or its lock; never this process.

    None means that none runs, or that it is not recorded and belongs to another user. Raises CommandError where the
    record cannot be read.
    """
    recorded = read_record(state).up
    if recorded is not None and recorded.pid != os.getpid() and recorded.is_alive():
        return recorded
    try:
        lock = (state / LOCK_NAME).stat()
    except FileNotFoundError:
        return None
    for stat in list_stats():
        if stat.process.pid != os.getpid() and not stat.has_ended and _has_open(stat.process.pid, lock):
            return ProcessRecord(pid=stat.process.pid, start_ticks=stat.process.start_ticks)
    return None


def find_children(state: Path, name: str) -> list[ProcessRecord]:
    """Return the running processes that an `up` on this state folder started as `name`, by its record or their mark.

    Usually there is one, or none. Raises CommandError where the record cannot be read.
    """
    recorded = read_record(state).children.get(name)
    found = [recorded] if recorded is not None and recorded.is_alive() else []
    return [*found, *(child for child in _find_marked(state, name) if child != recorded)]


def _find_marked(state: Path, name: str) -> list[ProcessRecord]:
    try:
        [(variable, value)] = mark_variables(state, name).items()
    except FileNotFoundError:
        return []
    # A child leads a session. Helper processes of a child inherit the mark and lead none; engines do not get the mark.
    return [
        ProcessRecord(pid=stat.process.pid, start_ticks=stat.process.start_ticks)
        for stat in list_stats()
        if stat.session == stat.process.pid and not stat.has_ended and has_variable(stat.process.pid, variable, value)
    ]


def _has_open(pid: int, file: os.stat_result) -> bool:
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:  # the process ended meanwhile, or belongs to another user
        return False
    for descriptor in descriptors:
        try:
            # Compare the name first: a stat of every open file of the machine could block on a lost file server.
            if descriptor.readlink().name == LOCK_NAME and os.path.samestat(descriptor.stat(), file):
                return True
        except OSError:
            continue
    return False
