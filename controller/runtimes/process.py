"""Replicas as processes of this host: the embedded default, which needs no Docker.

Engines outlive the controller. What is known of them is in `<state>/replicas/<name>.json`; their output is in
`<state>/logs/<name>.log`. docs/process.md tells the whole life of a replica.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final
from weakref import WeakValueDictionary

from controller.engines import engine_of
from controller.engines.base import Launch, RenderContext
from controller.runtimes.artifacts import check_files
from controller.runtimes.base import RuntimeUnavailableError, SeenReplica, StartError, StartRequest
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process_groups import Mark, end, find_leader, members
from controller.runtimes.process_logs import Logs
from controller.runtimes.process_preflight import check_program
from controller.runtimes.process_records import Record, Records
from controller.runtimes.process_spawn import Child, free_port, inherited, marks, spawn, visible_gpus
from controller.runtimes.process_stat import Process, alive, boot_id, read_stat
from controller.runtimes.process_watch import POLL_S, ExitWatch
from controller.schema.desired import Definition
from controller.state import Exit, Gpu, Phase, PreflightResult

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
        models: Path,
        *,
        python: str = sys.executable,
        log_mib: int = 16,
        host: str = "127.0.0.1",
        nvml: NvmlReader | None = None,
    ) -> None:
        state = state.resolve()
        self._instance = instance
        self._models = models.resolve()
        self._host = host
        self._records_folder, self._work, self._cache = state / "replicas", state / "work", state / "cache"
        self._records = Records(self._records_folder, instance)
        self._logs = Logs(state / "logs", log_mib * 2**20)
        for folder in (self._records_folder, self._work, self._cache, *self._logs.folders):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = {"python": python, "llama-server": shutil.which("llama-server")}
        self._executables = {name: path for name, path in found.items() if path}
        self._nvml = nvml or NvmlReader()
        self._children: dict[str, Child] = {}
        self._starting: set[str] = set()
        self._choosing = threading.Lock()
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watch: ExitWatch | None = None
        self._listeners: set[asyncio.Event] = set()
        self._closed = False

    # Seeing

    async def list(self) -> list[SeenReplica]:
        """Every replica of this instance. Children of an engine that has ended are ended now; until they are gone,
        it counts as running, since they hold its memory."""
        with _state_errors():
            looked = await asyncio.to_thread(self._look)
        watch = self._exits()
        for seen, record, lingers in looked:
            if lingers:
                self._sweep(record)
            elif seen.phase is Phase.RUNNING and record.leader is not None:
                watch.add(record.leader)
        return [seen for seen, _, _ in looked]

    def _look(self) -> list[tuple[SeenReplica, Record, bool]]:
        now_boot = boot_id()
        return [self._see(record, now_boot) for record in self._records.all()]

    def _see(self, record: Record, now_boot: str) -> tuple[SeenReplica, Record, bool]:
        self._logs.bound(record.name)
        if record.leader is None:
            record = self._found(record)
            if record.leader is None:
                return self._seen(record, Phase.CREATED), record, False
        child = self._children.get(record.name)
        code = child.poll() if child else record.exit_code
        if record.ended:
            return self._seen(record, Phase.EXITED), record, False
        same_boot = record.boot_id == now_boot
        if same_boot and record.leader is not None and alive(record.leader):
            return self._seen(record, Phase.RUNNING), record, False
        if same_boot and members(self._mark(record)):
            return self._seen(record, Phase.RUNNING), record, True
        record = self._records.update(record.name, ended=True, exit_code=code) or record
        return self._seen(record, Phase.EXITED), record, False

    def _found(self, record: Record) -> Record:
        """Complete the record of a start that was interrupted after its engine had begun to run."""
        if record.name in self._starting or (leader := find_leader(self._mark(record))) is None:
            return record
        log.info("%s was found running as process %d, its start was interrupted", record.name, leader.pid)
        return self._begun(record.name, leader) or record

    def _begun(self, name: str, leader: Process) -> Record | None:
        return self._records.update(name, pid=leader.pid, start_ticks=leader.start_ticks, started_at=time.time())

    def _seen(self, record: Record, phase: Phase) -> SeenReplica:
        exited = phase is Phase.EXITED
        return SeenReplica(
            id=record.id,
            name=record.name,
            phase=phase,
            created_at=record.created_at,
            started_at=record.started_at,
            base_url=None if phase is Phase.CREATED else f"http://{record.host}:{record.port}",
            claims=record.claims,
            exit=Exit(record.exit_code, log_tail=self._logs.tail(record.name)) if exited else None,
            argv=record.argv,
        )

    def _mark(self, record: Record) -> Mark:
        leader = record.leader if record.boot_id == boot_id() else None
        return Mark(record.start_id, self._work / record.name, self._logs.path(record.name), leader)

    async def log_tail(self, name: str, lines: int = 50) -> str:
        """The engine's last log lines, also of one that is gone; empty when there are none."""
        with _state_errors():
            return await asyncio.to_thread(self._logs.tail, name, lines)

    async def gpus(self) -> tuple[Gpu, ...] | None:
        """The host's GPUs."""
        return await asyncio.to_thread(self._nvml.read)

    def events(self) -> AsyncIterator[None]:
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

    def _exits(self) -> ExitWatch:
        if self._watch is None:
            self._watch = ExitWatch(self._on_exit)
        return self._watch

    def _on_exit(self, process: Process) -> None:
        for child in self._children.values():
            if child.pid == process.pid:
                child.poll()
        self._notify()

    def _notify(self) -> None:
        for changed in self._listeners:
            changed.set()

    # Starting

    async def preflight(self, model: str, definition: Definition, image: str | None) -> PreflightResult:
        """Whether an engine could be started: files, program and packages are there, and the definition renders."""
        error = await asyncio.to_thread(self._preflight, model, definition)
        return PreflightResult(error is None, time.time(), error)

    def _preflight(self, model: str, definition: Definition) -> str | None:
        engine = engine_of(definition)
        try:
            if wrong := check_files(self._models, engine.files(definition)):
                return wrong
            return check_program(self._render(definition, model, port=1).argv)
        except (ValueError, TypeError, KeyError) as error:
            return f"the definition of {model} cannot be turned into a command line: {error}"

    async def pull(self, image: str) -> None:
        """Processes have no images."""
        raise StartError("the process runtime has no images")

    async def start(self, request: StartRequest) -> None:
        """Start an engine; one that has a record is not started again."""

        async def work() -> None:
            async with self._lock(request.name):
                await asyncio.to_thread(self._start, request)
            if (record := self._records.get(request.name)) is not None and record.leader is not None:
                self._exits().add(record.leader)

        # A cancelled caller must not leave a start that others believe to be over.
        await asyncio.shield(self._task(f"start {request.name}", work()))

    def _start(self, request: StartRequest) -> None:
        name = request.name
        self._starting.add(name)
        try:
            visible = visible_gpus(self._indices(request))
            with self._choosing:
                record, launch = self._intent(request)
                if not self._records.create(record):
                    return
            try:
                self._spawn(record, launch, request.token, visible)
            except BaseException:
                self._forget(name)
                raise
        except OSError as error:
            raise StartError(f"{name} cannot be started: {error}") from error
        finally:
            self._starting.discard(name)

    def _intent(self, request: StartRequest) -> tuple[Record, Launch]:
        port = free_port(self._host, {record.port for record in self._records.all()})
        launch = self._render(request.definition, request.served_name, port)
        record = Record(
            instance=self._instance,
            name=request.name,
            model=request.id.model,
            index=request.id.index,
            spec_hash=request.id.spec_hash,
            attempt=request.id.attempt,
            start_id=secrets.token_hex(16),
            boot_id=boot_id(),
            host=self._host,
            port=port,
            argv=launch.argv,
            claims=dict(request.claims),
            created_at=time.time(),
        )
        return record, launch

    def _spawn(self, record: Record, launch: Launch, token: str, visible: dict[str, str]) -> None:
        work = self._work / record.name
        work.mkdir(mode=0o700, exist_ok=True)
        env = inherited(os.environ) | dict(launch.env) | visible
        env |= marks(self._instance, record.name, record.start_id)
        if launch.token_env is not None:
            env[launch.token_env] = token
        output = self._logs.open(record.name)
        try:
            child = spawn(launch.argv, env, work, output)
        finally:
            os.close(output)
        self._children[record.name] = child
        stat = read_stat(child.pid)
        assert stat is not None, "a child that was not reaped has its entry"
        try:
            self._begun(record.name, stat.process)
        except BaseException:
            os.killpg(child.pid, 9)
            child.wait()
            raise

    def _render(self, definition: Definition, served_name: str, port: int) -> Launch:
        context = RenderContext(
            runtime="process",
            served_name=served_name,
            models_root=PurePosixPath(self._models),
            host=self._host,
            port=port,
            cache_dir=PurePosixPath(self._cache),
            executables=self._executables,
        )
        return engine_of(definition).render(definition, context)

    def _indices(self, request: StartRequest) -> list[int]:
        if not request.claims:
            return []
        gpus = self._nvml.read()
        if gpus is None:
            raise StartError(f"the GPUs cannot be read: {self._nvml.error}")
        indices = {gpu.uuid: gpu.index for gpu in gpus}
        if missing := sorted(set(request.claims) - set(indices)):
            raise StartError(f"GPU {missing[0]} is not there")
        return [indices[uuid] for uuid in request.claims]

    # Ending

    async def stop(self, name: str, grace_s: float) -> None:
        """End an engine and all its processes, however long that takes, and forget it."""
        with _state_errors():
            async with self._lock(name):
                if (record := await asyncio.to_thread(self._records.get, name)) is not None:
                    await self._end(record, grace_s)

    async def remove(self, name: str) -> None:
        """Forget a replica that has ended or never began. One that runs is left as it is."""
        with _state_errors():
            async with self._lock(name):
                record = await asyncio.to_thread(self._records.get, name)
                if record is None:
                    return
                if record.leader is not None and record.boot_id == boot_id() and alive(record.leader):
                    log.warning("%s runs and is not removed: only a stop ends it", name)
                    return
                await self._end(record, 0.0)

    async def _end(self, record: Record, grace_s: float) -> None:
        name = record.name
        deadline = asyncio.get_running_loop().time() + UNSEEN_S
        while True:
            # An interrupted start may have left a child that holds the log and is not yet the engine: no mark shows.
            unseen = record.leader is None and await asyncio.to_thread(self._logs.written_to, name)
            await end(self._mark(record), grace_s, lambda: self._reap(name))
            if not unseen or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(self._forget, name)

    def _reap(self, name: str) -> None:
        if (child := self._children.get(name)) is not None:
            child.poll()

    def _forget(self, name: str) -> None:
        """The record goes last: until then, a crash leaves something that can be ended again."""
        self._reap(name)
        self._children.pop(name, None)
        self._logs.retire(name)
        shutil.rmtree(self._work / name, ignore_errors=True)
        self._records.remove(name)

    def _sweep(self, record: Record) -> None:
        """End what an engine left behind, once."""
        key = f"sweep {record.name}"
        if key in self._tasks or self._lock(record.name).locked():
            return

        async def work() -> None:
            async with self._lock(record.name):
                await end(self._mark(record), 0.0, lambda: self._reap(record.name))
            self._notify()

        self._task(key, work())

    def _lock(self, name: str) -> asyncio.Lock:
        return self._busy.setdefault(name, asyncio.Lock())

    def _task(self, key: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return task

    async def close(self) -> None:
        """Stop watching. Engines run on."""
        self._closed = True
        self._notify()
        if self._watch is not None:
            self._watch.close()
        for task in tuple(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RuntimeUnavailableError(f"the processes of this host cannot be looked after: {error}") from error
