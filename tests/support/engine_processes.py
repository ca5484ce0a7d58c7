"""What the state folder and the process table say of a stack's engines (process runtime)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.runtimes.process.groups import START_ENV
from controller.runtimes.process.records import ReplicaRecord
from controller.runtimes.process.spawn import INSTANCE_ENV, REPLICA_ENV
from controller.runtimes.process.stat import PROC, Process, read_stat
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

READS, READ_PAUSE_S = 50, 0.002
"""How often an environment that reads as empty is read again, and after which pause."""


@dataclass(frozen=True)
class EngineProcess:
    """A process whose environment says that it is an engine's."""

    pid: int
    replica: str
    start_id: str


def read_records(stack: RoundhouseStack) -> dict[str, ReplicaRecord]:
    """By replica name, as they are now. Raises OSError or ValueError for one that is being replaced."""
    paths = (stack.state / "replicas").glob("*.json")
    return {path.stem: ReplicaRecord.model_validate_json(path.read_bytes()) for path in paths}


def signal_engine(stack: RoundhouseStack, replica: str, number: signal.Signals) -> None:
    """Send a signal to an engine's whole process group."""
    pid = read_records(stack)[replica].pid
    assert pid is not None, f"{replica} has no process"
    os.killpg(pid, number)


async def kill_engine(stack: RoundhouseStack, replica: str) -> None:
    """SIGKILL to an engine's whole process group; returns when its process has ended, which takes a moment."""
    leader = read_records(stack)[replica].leader
    signal_engine(stack, replica, signal.SIGKILL)
    await until("the killed engine has ended", lambda: not is_running(leader))


def is_running(leader: Process | None) -> bool:
    """Whether this very process runs, and not another one of the same id. None is a start without a process."""
    stat = read_stat(leader.pid) if leader is not None else None
    return stat is not None and not stat.has_ended and stat.process == leader


def engine_processes(instance: str) -> list[EngineProcess]:
    """All processes of this instance's engines that run."""
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        environment = _environment(folder)
        if environment.get(INSTANCE_ENV) == instance and START_ENV in environment:
            found.append(EngineProcess(int(folder.name), environment.get(REPLICA_ENV, ""), environment[START_ENV]))
    return found


def read_environment(folder: Path) -> bytes:
    """The environment of the process in a folder of /proc, as it lies there. Raises OSError where it ended.

    While a process starts a program, its environment reads as empty for a moment: then it is read again.
    """
    for _ in range(READS):
        if environment := (folder / "environ").read_bytes():
            return environment
        (folder / "exe").readlink()  # the kernel's own threads have none
        time.sleep(READ_PAUSE_S)
    return b""


def _environment(folder: Path) -> dict[str, str]:
    try:
        entries = read_environment(folder).split(b"\0")
    except OSError:  # it ended meanwhile
        return {}
    return {name: value for name, _, value in (entry.decode(errors="replace").partition("=") for entry in entries)}


def what_is_wrong_with_engines(records: Mapping[str, ReplicaRecord], wanted: Counter[str]) -> list[str]:
    """Engines that are missing, doubled, orphaned or dead against `wanted`, replicas per model; empty: all is well."""
    found = []
    running = Counter(record.model for record in records.values())
    if running != wanted:
        found.append(f"records of {dict(running)} instead of {dict(wanted)}")
    places = Counter((record.model, record.index) for record in records.values())
    found += [f"{count} engines at {place}" for place, count in places.items() if count > 1]
    found += [f"{name} is recorded and does not run" for name, each in records.items() if not is_running(each.leader)]
    instances = {record.instance for record in records.values()}
    starts = {record.start_id for record in records.values()}
    for instance in instances:
        found += [f"orphan: {each}" for each in engine_processes(instance) if each.start_id not in starts]
    return found
