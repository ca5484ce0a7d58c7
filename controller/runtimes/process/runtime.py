"""Replicas as processes of this host: the embedded default, which needs no Docker.

Engines outlive the controller. What is known of them is in `<state>/replicas/<name>.json`; their output is in
`<state>/logs/<name>.log`. docs/process.md tells the whole life of a replica.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import shutil
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from controller.artifacts.model_roots import ModelRoots
from controller.runtimes.base import LogPart, Rendered, RuntimeUnavailableError, SeenReplica, StartError, StartRequest
from controller.runtimes.gpu_owners import GpuOwners
from controller.runtimes.logs import EXIT_LINES
from controller.runtimes.naming import is_replica_name
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.exit_watch import POLL_S, ExitWatch
from controller.runtimes.process.groups import ReplicaMark, end_processes, find_leader, group_members
from controller.runtimes.process.launch import Launcher
from controller.runtimes.process.logs import ProcessLogs
from controller.runtimes.process.memory import process_host_mib
from controller.runtimes.process.records import Records, ReplicaRecord
from controller.runtimes.process.spawn import Child
from controller.runtimes.process.stat import Process, boot_id, is_alive
from controller.schema.desired import Definition
from controller.state import Exit, Gpu, GpuDriver, Phase, PreflightResult, UnreadGpu

UNSEEN_S: Final = 10.0
"""How long an interrupted start may hold its log without being found: between fork and exec, which takes moments."""

log = logging.getLogger(__name__)


class ProcessRuntime:
    """Starts, sees and ends engines as processes. One object per event loop; one controller per state folder."""

    kind = "process"

    def __init__(
        self,
        instance: str,
        state: Path,
        models: ModelRoots,
        *,
        python: str = sys.executable,
        log_mib: int = 16,
        host: str = "127.0.0.1",
        nvml: NvmlReader | None = None,
    ) -> None:
        state = state.resolve()
        self._instance = instance
        self._work_dir = state / "work"
        self._records = Records(state / "replicas", instance)
        self._logs = ProcessLogs(state / "logs", log_mib * 2**20)
        self._nvml = nvml or NvmlReader()
        self._owners = GpuOwners(self._list_processes)
        self._launcher = Launcher(
            instance,
            self._records,
            self._logs,
            self._nvml,
            work=self._work_dir,
            cache=state / "cache",
            roots=models.absolute(),
            host=host,
            python=python,
        )
        self._children: dict[str, Child] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._exit_watch: ExitWatch | None = None
        self._listeners: set[asyncio.Event] = set()
        self._closed = False

    # Seeing

    async def list_replicas(self) -> list[SeenReplica]:
        """Every replica of this instance. Children of an engine that has ended are ended now; until they are gone,
        it counts as running, since they hold its memory."""
        with _state_errors():
            observations = await asyncio.to_thread(self._observe_records)
        watch = self._get_exit_watch()
        for replica, record, has_orphans in observations:
            if has_orphans:
                self._sweep_orphans(record)
            elif replica.phase is Phase.RUNNING and record.leader is not None:
                watch.add_process(record.leader)
        return [replica for replica, _, _ in observations]

    def _observe_records(self) -> tuple[tuple[SeenReplica, ReplicaRecord, bool], ...]:
        current_boot = boot_id()
        return tuple(self._observe_record(record, current_boot) for record in self._records.read_records())

    def _observe_record(self, record: ReplicaRecord, current_boot: str) -> tuple[SeenReplica, ReplicaRecord, bool]:
        self._logs.bound_log(record.name)
        if record.leader is None:
            record = self._complete_record(record)
            if record.leader is None:
                return self._seen_replica(record, Phase.CREATED), record, False
        if record.ended:
            return self._seen_replica(record, Phase.EXITED), record, False
        is_same_boot = record.boot_id == current_boot
        if is_same_boot and record.leader is not None and is_alive(record.leader):
            return self._seen_replica(record, Phase.RUNNING), record, False
        exit_code = self._reap(record.name)  # not before: it would be asked too early
        if is_same_boot and group_members(self._mark_of(record)):
            return self._seen_replica(record, Phase.RUNNING), record, True
        record = self._records.update_record(record.name, ended=True, exit_code=exit_code) or record
        return self._seen_replica(record, Phase.EXITED), record, False

    def _complete_record(self, record: ReplicaRecord) -> ReplicaRecord:
        """Complete the record of a start that was interrupted after its engine had begun to run."""
        leader = find_leader(self._mark_of(record))
        if leader is None:
            return record
        log.debug("%s is process %d, which its record did not say yet", record.name, leader.pid)
        return self._records.note_started(record.name, leader) or record

    def _seen_replica(self, record: ReplicaRecord, phase: Phase) -> SeenReplica:
        has_exited = phase is Phase.EXITED
        return SeenReplica(
            id=record.id,
            name=record.name,
            phase=phase,
            created_at=record.created_at,
            started_at=record.started_at,
            base_url=None if phase is Phase.CREATED else f"http://{record.host}:{record.port}",
            claims=record.claims,
            exit=Exit(record.exit_code, log_tail=self._logs.read_tail(record.name, EXIT_LINES)) if has_exited else None,
            argv=record.argv,
        )

    def _mark_of(self, record: ReplicaRecord) -> ReplicaMark:
        leader = record.leader if record.boot_id == boot_id() else None
        return ReplicaMark(record.start_id, self._work_dir / record.name, self._logs.log_path(record.name), leader)

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """The engine's last log lines, also of one that is gone; empty when there are none."""
        with _state_errors():
            return await asyncio.to_thread(self._logs.read_tail, name, lines)

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Names of the model's replicas that are gone and whose logs are kept, the newest first."""
        with _state_errors():
            return await asyncio.to_thread(self._logs.ended_logs.list_names, self._instance, model)

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """What the engine wrote after `cursor`; a cursor that cannot be read counts as none."""
        if not is_replica_name(self._instance, name):
            return None
        with _state_errors():
            return await asyncio.to_thread(self._log_after, name, cursor, lines)

    def _log_after(self, name: str, cursor: str | None, lines: int) -> LogPart | None:
        record = self._records.read_record(name)  # first: what it wrote before it ended is there then
        part = self._logs.read_after(name, cursor, lines, has_ended=record is None or record.ended)
        return LogPart((), cursor or "", running=True) if part is None and record is not None else part

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """What it would be started with now; None also when it has no record any more."""
        with _state_errors():
            record = await asyncio.to_thread(self._records.read_record, replica.name)
        return None if record is None else self._launcher.render_replica(record, definition)

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """The host's GPUs."""
        return await self._owners.name_owners(await asyncio.to_thread(self._nvml.read_gpus))

    async def _list_processes(self) -> dict[str, builtins.list[int]]:
        def look() -> dict[str, list[int]]:
            running_records = (record for record in self._records.read_records() if not record.ended)
            return {
                each.name: [process.pid for process in group_members(self._mark_of(each))] for each in running_records
            }

        with _state_errors():
            return await asyncio.to_thread(look)

    async def read_host_mib(self, name: str) -> int | None:
        """Main memory that an engine and its children hold, in MiB; None: it does not run."""

        def look() -> int | None:
            record = self._records.read_record(name)
            return None if record is None else process_host_mib(group_members(self._mark_of(record)))

        with _state_errors():
            return await asyncio.to_thread(look)

    def get_gpu_error(self) -> str | None:
        """Why there are no figures of GPUs."""
        return self._nvml.reason

    def get_gpu_driver(self) -> GpuDriver | None:
        """The host's NVIDIA driver by the last reading of its GPUs; None: not known."""
        return self._nvml.driver

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """The GPUs that the last reading left out."""
        return self._nvml.unread_gpus

    def watch_events(self) -> AsyncIterator[None]:
        """Yields whenever an engine has ended; several ends may be one event."""
        changed = asyncio.Event()
        self._listeners.add(changed)
        return self._events(changed)

    async def _events(self, changed: asyncio.Event) -> AsyncIterator[None]:
        try:
            while not self._closed:
                await changed.wait()
                changed.clear()
                if not self._closed:
                    yield
        finally:
            self._listeners.discard(changed)

    def _get_exit_watch(self) -> ExitWatch:
        if self._exit_watch is None:
            self._exit_watch = ExitWatch(self._on_exit)
        return self._exit_watch

    def _on_exit(self, process: Process) -> None:
        for child in tuple(self._children.values()):  # a start may add one meanwhile, in its thread
            if child.pid == process.pid:
                child.poll()
        self._notify()

    def _notify(self) -> None:
        for changed in self._listeners:
            changed.set()

    # Starting and ending

    async def check_preflight(self, model: str, definition: Definition, image: str | None) -> PreflightResult:
        """Whether an engine could be started: files, program and packages are there, and the definition renders."""
        error = await asyncio.to_thread(self._launcher.check_preflight, model, definition)
        return PreflightResult(error is None, time.time(), error)

    async def pull_image(self, image: str) -> None:
        """Processes have no images."""
        raise StartError("the process runtime has no images")

    async def start_replica(self, request: StartRequest) -> None:
        """Start an engine; one that has a record is not started again."""

        async def work() -> None:
            async with self._lock_of(request.name):
                leader = await asyncio.to_thread(self._launcher.start_replica, request, self._children)
            if leader is not None:
                self._get_exit_watch().add_process(leader)

        # A cancelled caller must not leave a start that others believe to be over.
        await asyncio.shield(self._start_task(f"start {request.name}", work()))

    async def stop_replica(self, name: str, grace_s: float) -> None:
        """End an engine and all its processes, however long that takes, and forget it."""
        with _state_errors():
            async with self._lock_of(name):
                if (record := await asyncio.to_thread(self._records.read_record, name)) is not None:
                    await self._end_replica(record, grace_s)

    async def remove_replica(self, name: str) -> None:
        """Forget a replica that has ended or never began. One that runs is left as it is."""
        with _state_errors():
            async with self._lock_of(name):
                record = await asyncio.to_thread(self._records.read_record, name)
                if record is None:
                    return
                if record.leader is not None and record.boot_id == boot_id() and is_alive(record.leader):
                    log.warning("%s runs and is not removed: only a stop ends it", name)
                    return
                await self._end_replica(record, 0.0)

    async def _end_replica(self, record: ReplicaRecord, grace_s: float) -> None:
        name = record.name
        deadline = asyncio.get_running_loop().time() + UNSEEN_S
        while True:
            # An interrupted start may have left a child that holds the log and is not yet the engine: no mark shows.
            may_be_starting = record.leader is None and await asyncio.to_thread(self._logs.is_written_to, name)
            await end_processes(self._mark_of(record), grace_s, lambda: self._reap(name))
            if not may_be_starting or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(self._forget_replica, name)

    def _reap(self, name: str) -> int | None:
        child = self._children.get(name)
        return child.poll() if child else None

    def _forget_replica(self, name: str) -> None:
        """The record goes last: until then, a crash leaves something that can be ended again."""
        self._reap(name)
        self._children.pop(name, None)
        self._logs.retire_log(name)
        shutil.rmtree(self._work_dir / name, ignore_errors=True)
        self._records.remove_record(name)

    def _sweep_orphans(self, record: ReplicaRecord) -> None:
        """End what an engine left behind, once."""
        key = f"sweep {record.name}"
        if key in self._tasks or self._lock_of(record.name).locked():
            return

        async def work() -> None:
            try:
                async with self._lock_of(record.name):
                    await end_processes(self._mark_of(record), 0.0, lambda: self._reap(record.name))
            except OSError as error:
                log.warning("what %s left behind cannot be ended: %s", record.name, error)
            self._notify()

        self._start_task(key, work())

    def _lock_of(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _start_task(self, key: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return task

    async def close(self) -> None:
        """Stop watching. Engines run on."""
        self._closed = True
        self._notify()
        if self._exit_watch is not None:
            self._exit_watch.close()
        for task in tuple(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._nvml.close()


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RuntimeUnavailableError(f"the processes of this host cannot be looked after: {error}") from error
