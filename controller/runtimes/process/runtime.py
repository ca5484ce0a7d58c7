"""The runtime that runs replicas as processes of this host. It needs no Docker.

Engines outlive the controller. Their records are in `<state>/replicas/<name>.json`, their output is in
`<state>/logs/<name>.log`. docs/process.md describes the whole life of a replica.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import shutil
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import psutil

from contract.desired import Definition
from controller.artifacts.model_roots import ModelRoots
from controller.hosts import Gpu, GpuDriver, UnreadGpu
from controller.runtimes.base import (
    LogPart,
    Rendered,
    RuntimeUnavailableError,
    SeenReplica,
    StartError,
    StartRequest,
    is_replica_name,
)
from controller.runtimes.gpus import GpuOwners
from controller.runtimes.logs import EXIT_LINES
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.groups import (
    POLL_S,
    ExitWatch,
    Process,
    ReplicaMark,
    boot_id,
    end_processes,
    find_leader,
    group_members,
    is_alive,
    read_stat,
)
from controller.runtimes.process.launch import (
    Child,
    HostCommands,
    Launcher,
    Records,
    ReplicaRecord,
    find_executables,
    keep_copy,
    read_copies,
)
from controller.runtimes.process.logs import ProcessLogs
from controller.state import Exit, Phase, PreflightResult

log = logging.getLogger(__name__)


_MIB = 2**20


def process_host_mib(processes: Iterable[Process]) -> int | None:
    """Return the MiB of main memory that the processes hold together, including mapped model files. None if none of the
    processes can be read; never 0. Memory that they share counts once (PSS). But the result is at least the memory
    (RSS) of the largest process: PSS counts a model file only in part if another replica has mapped it too, and the
    replica needs all of it once the other one is gone. Blocks."""
    pss_bytes, largest_rss = 0, 0
    for process in processes:
        rss, pss = _held_bytes(process)
        pss_bytes, largest_rss = pss_bytes + pss, max(largest_rss, rss)
    return -(-max(pss_bytes, largest_rss) // _MIB) or None


def _held_bytes(process: Process) -> tuple[int, int]:
    """Return RSS and PSS in bytes; zeros if the process has ended or may not be read."""
    try:
        ps_process = psutil.Process(process.pid)
        try:
            memory = ps_process.memory_full_info()
            rss, pss = memory.rss, memory.pss
        except psutil.AccessDenied:
            rss = pss = ps_process.memory_info().rss
    except (psutil.Error, OSError):
        return 0, 0
    stat = read_stat(process.pid)
    return (rss, pss) if stat is not None and stat.process == process else (0, 0)


UNSEEN_S: Final = 10.0
"""Seconds for which the child of an interrupted start may hold its log without being recognized. It is not recognized
between fork and exec, which takes moments."""


class ProcessRuntime:
    """Starts, lists and stops replicas as processes of this host. Its methods promise what those of
    `controller.runtimes.base.Runtime` do; every coroutine method but `close` may raise RuntimeUnavailableError. Use one
    object in one event loop only, and one controller per state folder. Call `close` at the end; engines go on."""

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
        """Create a runtime, and its folders in the state folder.

        Args:
            instance: Id of this installation, part of every replica's name.
            state: The state folder.
            models: The models folders.
            python: Path of the Python interpreter that runs the workers (`python -m worker`).
            log_mib: MiB of each engine's output after which its log is cut to half of that.
            host: Address on which engines listen.
            nvml: Reads GPUs; None: the NVML library of this process.

        Raises:
            OSError: A folder cannot be made.
        """
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
            self._work_dir,
            HostCommands(models.absolute(), state / "cache", host, find_executables(python)),
        )
        self._children: dict[str, Child] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._exit_watch: ExitWatch | None = None
        self._listeners: set[asyncio.Event] = set()
        self._closed = False

    # Seeing

    async def list_replicas(self) -> list[SeenReplica]:
        """Return every replica of this instance, in any phase. Also cut logs that are too long, and write records anew
        that were deleted while their engines run. If an engine has ended and left children behind, begin to end these.
        Until they are gone the replica counts as running, since they hold its memory. Raises RuntimeUnavailableError if
        a record or a log cannot be read, or too many files are open."""
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
        records = self._records.read_records()
        records += self._restore_records({record.name for record in records}, current_boot)
        return tuple(self._observe_record(record, current_boot) for record in records)

    def _restore_records(self, known_names: set[str], current_boot: str) -> builtins.list[ReplicaRecord]:
        """Write the records anew that were deleted while their engines run, and return them."""
        restored_records = []
        for copy in read_copies(self._work_dir, self._instance):
            is_lost = copy.name not in known_names and copy.boot_id == current_boot
            if is_lost and group_members(self._mark_of(copy)) and self._records.create_record(copy):
                log.warning("the record of %s was deleted, and is written anew: its engine runs", copy.name)
                restored_records.append(copy)
        return restored_records

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
            keep_copy(record, self._work_dir / record.name)
            return self._seen_replica(record, Phase.RUNNING), record, False
        exit_code = self._reap(record.name)  # only after `is_alive`: an earlier poll may miss the end
        if is_same_boot and group_members(self._mark_of(record)):
            return self._seen_replica(record, Phase.RUNNING), record, True
        record = self._records.update_record(record.name, ended=True, exit_code=exit_code) or record
        return self._seen_replica(record, Phase.EXITED), record, False

    def _complete_record(self, record: ReplicaRecord) -> ReplicaRecord:
        """Add the engine's process to the record of a start that was interrupted after the engine had begun to run."""
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
        """Return the engine's last log lines, also those of a removed replica whose log was kept; empty: none. `name`
        must be a replica name of this instance. Raises RuntimeUnavailableError."""
        with _state_errors():
            return await asyncio.to_thread(self._logs.read_tail, name, lines)

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Return the names of the model's removed replicas whose logs are kept, newest first. Raises
        RuntimeUnavailableError if the state folder cannot be read."""
        with _state_errors():
            return await asyncio.to_thread(self._logs.ended_logs.list_names, self._instance, model)

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """Return what the engine wrote after `cursor`, of an earlier `LogPart`, in whole lines, perhaps none. `cursor`
        None: the last `lines` lines. Read on while `LogPart.running` is true. The result is None if no log of `name` is
        known. Raises RuntimeUnavailableError if a record or a log cannot be read."""
        if not is_replica_name(self._instance, name):
            return None
        with _state_errors():
            return await asyncio.to_thread(self._log_after, name, cursor, lines)

    def _log_after(self, name: str, cursor: str | None, lines: int) -> LogPart | None:
        record = self._records.read_record(name)  # before the log: if it has ended, its log is then complete
        part = self._logs.read_after(name, cursor, lines, has_ended=record is None or record.ended)
        return LogPart((), cursor or "", running=True) if part is None and record is not None else part

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """Return what a running replica would be started with now, at the address in its record. None if it has no
        record, if the definition yields no command line, or if a claimed GPU cannot be read. `image` is ignored.
        Raises RuntimeUnavailableError if the record or a path cannot be read."""

        def render() -> Rendered | None:
            record = self._records.read_record(replica.name)
            return None if record is None else self._launcher.render_replica(record, definition)

        with _state_errors():
            return await asyncio.to_thread(render)

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """Return the host's GPUs that can be read; their processes name their replicas. Empty: there are none, or no
        NVIDIA driver. None: unknown, since they cannot be read now. Raises nothing."""
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
        """Return the MiB of main memory that an engine and its children hold, including mapped model files. None if the
        replica does not run, or if its processes cannot be read. Raises RuntimeUnavailableError if its record cannot be
        read, and ValueError for a name of another instance."""

        def look() -> int | None:
            record = self._records.read_record(name)
            return None if record is None else process_host_mib(group_members(self._mark_of(record)))

        with _state_errors():
            return await asyncio.to_thread(look)

    def get_gpu_error(self) -> str | None:
        """Return why the last `read_gpus` found no GPU or failed, in words; None: it found GPUs or was never called."""
        return self._nvml.reason

    def get_gpu_driver(self) -> GpuDriver | None:
        """Return the NVIDIA driver that the last `read_gpus` found; None: it found none, or was never called."""
        return self._nvml.driver

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """Return the GPUs that the last `read_gpus` left out because they cannot be read, each with the reason."""
        return self._nvml.unread_gpus

    def watch_events(self) -> AsyncIterator[None]:
        """Yield whenever engines have ended, once for one or more of them, until `close`. Only engines that
        `list_replicas` or `start_replica` of this object saw running are watched. Starts are not reported."""
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

    async def check_preflight(
        self, model: str, definition: Definition, image: str | None, host: str = ""
    ) -> PreflightResult:
        """Check whether a replica could be started: files, program and Python package exist, and the definition renders
        to a command line. Starts nothing. `image` is ignored. A failed check does not raise; the result says why."""
        error = await asyncio.to_thread(self._launcher.check_preflight, model, definition)
        return PreflightResult(error is None, time.time(), error)

    async def pull_image(self, image: str, host: str = "") -> None:
        """Always raise StartError: processes have no images."""
        raise StartError("the process runtime has no images")

    async def start_replica(self, request: StartRequest) -> None:
        """Start an engine, in a session of its own, and return once its process runs. Does nothing if there is a record
        of that name. If the caller is cancelled, the start is finished all the same. Raises StartError if the start
        fails, with nothing of it left, and RuntimeUnavailableError if a record cannot be read."""

        async def work() -> None:
            async with self._lock_of(request.name):
                leader = await asyncio.to_thread(self._launcher.start_replica, request, self._children)
            if leader is not None:
                with suppress(OSError):  # it runs all the same; `list_replicas` watches it later
                    self._get_exit_watch().add_process(leader)

        # Shielded: a start must finish even if its caller is cancelled, since others would take it for done.
        await asyncio.shield(self._start_task(f"start {request.name}", work()))

    async def stop_replica(self, name: str, grace_s: float) -> None:
        """End an engine and all its processes, however long that takes, and remove the replica: SIGTERM, then SIGKILL
        after `grace_s` seconds. The end of its log is kept. Does nothing if there is no record of that name. Waits for
        a start or stop of the same replica that is under way. If the caller is cancelled, signals that were sent take
        effect, and the replica stays listed until it is stopped or removed.

        Raises RuntimeUnavailableError if a process belongs to another user or a file cannot be deleted, and ValueError
        for a name of another instance.
        """
        with _state_errors():
            async with self._lock_of(name):
                if (record := await asyncio.to_thread(self._records.read_record, name)) is not None:
                    await self._end_replica(record, grace_s)

    async def remove_replica(self, name: str) -> None:
        """Remove a replica that has ended or was never started, and kill the processes that its engine left behind,
        which takes as long as they take to end. The end of its log is kept. Does nothing if there is no record of that
        name. A replica whose engine runs is left as it is, with a warning in the log. Raises RuntimeUnavailableError if
        a process belongs to another user or a file cannot be deleted, and ValueError for a name of another instance."""
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
            # An interrupted start may have left a child that holds the log but is not recognizable before its exec.
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
        """Delete all files of an ended replica, the record last: after a crash, the record lets this be repeated."""
        self._reap(name)
        self._children.pop(name, None)
        self._logs.retire_log(name)
        shutil.rmtree(self._work_dir / name, ignore_errors=True)
        self._records.remove_record(name)

    def _sweep_orphans(self, record: ReplicaRecord) -> None:
        """End the processes that an ended engine left behind, in a task. Does nothing if that is under way."""
        key = f"sweep {record.name}"
        if key in self._tasks or self._lock_of(record.name).locked():
            return

        async def work() -> None:
            try:
                async with self._lock_of(record.name):
                    await end_processes(self._mark_of(record), 0.0, lambda: self._reap(record.name))
            except OSError as error:
                log.warning("what %s left behind cannot be ended: %s", record.name, error)
                return  # an event would bring the next try at once
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
        """End `watch_events`, and cancel starts and clean-ups under way. Engines go on running. A start whose thread
        already works is finished in it; the next controller finds its engine by the record. Blocks until NVML is
        closed."""
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
