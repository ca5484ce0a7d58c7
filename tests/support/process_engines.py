"""Engines as processes: what the state folder and the process table say of them, and shell programs in llama-server's
place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.desired import Definition
from controller.artifacts.model_roots import ModelRoots
from controller.engines import get_engine
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.runtimes.base import Runtime, StartRequest
from controller.runtimes.cluster.host_service import HostService
from controller.runtimes.cluster.local_carrier import LocalCarrier
from controller.runtimes.cluster.runtime import ClusterRuntime
from controller.runtimes.process.groups import PROC, START_ENV, Process, list_stats, read_stat
from controller.runtimes.process.launch import INSTANCE_ENV, REPLICA_ENV, ReplicaRecord
from controller.runtimes.process.runtime import ProcessRuntime
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_contract import request_for, running
from tests.support.wait import DEADLINE_S, until

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


INSTANCE = "test1"
OTHER_INSTANCE = "test2"


class ProcessEngines:
    """Engines of one test, with a state folder and a models folder below `root`. See ContractEngines."""

    killed_code = -signal.SIGKILL
    tells_codes_of_unseen_ends = False

    def __init__(self, root: Path, instance: str = INSTANCE) -> None:
        self.root = root
        self.instance = instance
        self.state = root / "state"
        self.models = root / "models"
        self.models_inside = str(self.models)
        self.models.mkdir(parents=True, exist_ok=True)
        self._foreign: dict[str, subprocess.Popen[bytes]] = {}

    def runtime(self, **settings: Any) -> ProcessRuntime:
        """A runtime over this place; another object stands for another controller."""
        roots = settings.pop("models", ModelRoots((self.models,)))
        return ProcessRuntime(self.instance, self.state, roots, **settings)

    def other_instance(self) -> ProcessEngines:
        """Another Roundhouse that was given the same folders."""
        return ProcessEngines(self.root, OTHER_INSTANCE)

    def shell(self, body: str, **fields: object) -> LlamaServerDefinition:
        """A model whose engine is a shell program."""
        path = self.root / f"engine-{zlib.crc32(body.encode()):08x}.sh"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        content = {"model_path": "m.gguf", "llama_server_binary": str(path), **fields}
        return LlamaServerDefinition.model_validate(content)

    def stub(self, **fields: object) -> StubDefinition:
        """A model served by the real worker's stub."""
        return StubDefinition.model_validate({"backend": "stub", **fields})

    def llama_server(self, model_path: str) -> LlamaServerDefinition:
        """A model served by llama-server in a worker's process, for a program is only taken where one is named."""
        return LlamaServerDefinition(model_path=model_path)

    def request(
        self, definition: Definition, model: str = "m", *, attempt: int = 1, claims: Mapping[str, int] | None = None
    ) -> StartRequest:
        """A start of a model's first replica."""
        assert get_engine(definition).runs
        return request_for(self.instance, definition, None, model, attempt, claims)

    def unstartable(self) -> tuple[StartRequest, str]:
        definition = self.shell("exit 0")
        Path(str(definition.llama_server_binary)).unlink()
        return self.request(definition), "cannot be started: No such file"

    def record(self, name: str) -> ReplicaRecord:
        """What the state folder says of a replica."""
        return ReplicaRecord.model_validate_json(self.record_path(name).read_bytes())

    def record_path(self, name: str) -> Path:
        return self.state / "replicas" / f"{name}.json"

    def log(self, name: str) -> Path:
        """Where the replica's engine writes."""
        return self.state / "logs" / f"{name}.log"

    def leader(self, name: str) -> int:
        """The engine's own process."""
        pid = self.record(name).pid
        assert pid is not None
        return pid

    def identity(self, name: str) -> str:
        """Process id and start time."""
        stat = read_stat(self.leader(name))
        assert stat is not None
        return str(stat.process)

    def pids(self, name: str) -> list[int]:
        """Every process that has the replica's name in its environment."""
        mark = f"ROUNDHOUSE_REPLICA={name}".encode()
        return [pid for pid, environ, _ in _processes() if mark in environ.split(b"\0")]

    def kill(self, name: str) -> None:
        """SIGKILL to the engine's own process."""
        os.kill(self.leader(name), signal.SIGKILL)

    def log_bytes(self, name: str) -> int:
        return sum(path.stat().st_size for path in self.log(name).parent.glob(f"{name}.log*"))

    def foreign(self, name: str) -> None:
        """A process with a record that has our name and another's instance."""
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._foreign[name] = process
        stat = read_stat(process.pid)
        assert stat is not None
        record = ReplicaRecord(
            instance=OTHER_INSTANCE,
            name=name,
            model="m",
            index=0,
            spec_hash="0",
            attempt=1,
            start_id="foreign",
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            host="127.0.0.1",
            port=1,
            argv=("sleep",),
            claims={},
            created_at=1.0,
            pid=process.pid,
            start_ticks=stat.process.start_ticks,
        )
        self.record_path(name).write_text(record.model_dump_json())

    def foreign_runs(self, name: str) -> bool:
        process = self._foreign[name]
        return running(process.pid) and self.record(name).pid == process.pid

    async def half_created(self, request: StartRequest) -> None:
        """A record without a process, as it is written before the spawn."""
        runtime = self.runtime()
        await runtime.start_replica(request)
        begun = self.record(request.name)
        await runtime.stop_replica(request.name, 0)
        await runtime.close()
        intent = begun.model_copy(update={"pid": None, "start_ticks": None, "started_at": None})
        self.record_path(request.name).write_text(intent.model_dump_json())

    @contextmanager
    def unreachable(self) -> Iterator[Runtime]:
        """A runtime whose folder of records is away, as on a volume that is not mounted."""
        runtime = self.runtime()
        folder = self.state / "replicas"
        away = folder.rename(self.state / "away")
        yield runtime
        away.rename(folder)

    def left(self) -> list[str]:
        """Records, folders to work in, processes."""
        found = [path.stem for path in (self.state / "replicas").glob("*.json")]
        found += [path.name for path in (self.state / "work").glob("*")]
        mark = f"ROUNDHOUSE_INSTANCE={self.instance}".encode()
        ours = (pid for pid, env, home in _processes() if mark in env.split(b"\0") and home.is_relative_to(self.root))
        return found + [str(pid) for pid in ours]

    async def close(self) -> None:
        """End what a test has left: every process whose folder or environment is of this place."""
        self._end_all()

    def _end_all(self) -> None:
        for process in self._foreign.values():
            process.kill()
            process.wait()
        for pid, environ, home in _processes():
            if pid != os.getpid() and (str(self.root).encode() in environ or home.is_relative_to(self.root)):
                stat = read_stat(pid)
                os.kill(pid, signal.SIGKILL)
                if stat is not None and stat.parent == os.getpid():
                    os.waitpid(pid, 0)


class HostEngines(ProcessEngines):
    """The same engines, seen over a carrier: their runtime is that of an only host without a name."""

    def runtime(self, **settings: Any) -> ClusterRuntime:  # type: ignore[override] # neither is the other
        return ClusterRuntime(LocalCarrier({"": HostService(super().runtime(**settings))}), kind="process")

    def other_instance(self) -> HostEngines:
        return HostEngines(self.root, OTHER_INSTANCE)


def _processes() -> Iterator[tuple[int, bytes, Path]]:
    """Processes that may be looked at: pid, environment, working folder."""
    for stat in list_stats():
        entry = Path(f"/proc/{stat.process.pid}")
        try:
            yield stat.process.pid, read_environment(entry), (entry / "cwd").readlink()
        except OSError:
            continue


def zombies() -> list[int]:
    """Our ended children that nobody reaped."""
    return [each.process.pid for each in list_stats() if each.parent == os.getpid() and each.has_ended]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition, with a deadline, where there is no event loop."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.01)


def numbers(path: Path) -> list[int]:
    """Pids that a program wrote, one on each line."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []
