"""Starts engines as processes. A record on disk exists at every moment of a start."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from controller.artifacts.model_roots import ModelRoots
from controller.engines import get_engine
from controller.engines.base import Launch
from controller.gpus import Gpu
from controller.runtimes.base import RENDER_ERRORS, Rendered, StartError, StartRequest, no_command_error
from controller.runtimes.claimed_gpus import describe_claims, find_claimed_gpus, visible_gpus
from controller.runtimes.model_files import check_model
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.host_commands import HostCommands, find_executables
from controller.runtimes.process.logs import ProcessLogs
from controller.runtimes.process.records import Records, ReplicaRecord
from controller.runtimes.process.spawn import (
    Child,
    check_gpu_support,
    find_free_port,
    inherited_environment,
    mark_variables,
    spawn_engine,
)
from controller.runtimes.process.stat import Process, boot_id, read_stat
from controller.schema.desired import Definition
from controller.state import HOST


class Launcher:
    """Renders the command lines of engines, records their starts and spawns them. A process runtime has one. Blocking:
    call its methods in a thread. Making one creates the folders `work` and `cache`, and raises OSError where they
    cannot be made."""

    def __init__(
        self,
        instance: str,
        records: Records,
        logs: ProcessLogs,
        nvml: NvmlReader,
        *,
        work: Path,
        cache: Path,
        roots: ModelRoots,
        host: str,
        python: str,
    ) -> None:
        self._instance = instance
        self._records = records
        self._logs = logs
        self._nvml = nvml
        self._work_dir = work
        self._roots = roots
        self._host = host
        for folder in (work, cache):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._commands = HostCommands(roots, cache, host, find_executables(python))
        self._port_lock = threading.Lock()

    def check_preflight(self, model: str, definition: Definition) -> str | None:
        """Return why an engine could not be started, by its files, its program and its command line; None: it could.
        Whether its GPUs are there is not checked. A failed check does not raise. Blocks."""
        problem = check_model(self._roots, get_engine(definition), definition)
        return problem or self._commands.check_command(definition, model)

    def render_replica(self, record: ReplicaRecord, definition: Definition) -> Rendered | None:
        """Return what a replica would be started with now, at the address and with the GPUs in its record. Blocks.

        None if the definition yields no command line, or if one of these GPUs is gone or cannot be read. Raises OSError
        if a path cannot be looked at.
        """
        try:
            gpus = self._claimed_gpus(record.claims)
            claims = describe_claims(record.claims, gpus)
            launch = self._commands.render_command(
                definition, record.model, record.port, claims, record.host, record.index
            )
            return Rendered(launch.argv)
        except (*RENDER_ERRORS, AssertionError, StartError):
            return None

    def start_replica(self, request: StartRequest, children: MutableMapping[str, Child]) -> Process | None:
        """Start an engine, and return its process. None: there is a record of that name, so nothing was started.
        Blocks.

        The engine is a child of this process; `children` gets it, by replica name, and the caller must reap it. Raises
        StartError if a claimed GPU is missing or cannot be used, no port is free, the definition yields no command
        line, the program cannot be started, or a file cannot be written; record and log are removed again then. Raises
        RuntimeUnavailableError if a record cannot be read.
        """
        try:
            gpus = self._claimed_gpus(request.claims)
            check_gpu_support(get_engine(request.definition), gpus)
            with self._port_lock:
                record, launch = self._prepare_start(request, gpus)
                if not self._records.create_record(record):
                    return None
            # CUDA may not count a GPU that fell off the bus, so its indices may then differ from NVML's: use uuids.
            gpu_env = visible_gpus(gpus, by_uuid=bool(self._nvml.unread_gpus))
            try:
                return self._spawn(record, launch, request.token, gpu_env, children)
            except BaseException:
                self._undo_start(request.name)
                raise
        except OSError as error:
            plain = f"{request.name} cannot be started"
            raise StartError(f"{plain}: {error}", plain=plain) from error

    def _prepare_start(self, request: StartRequest, gpus: tuple[Gpu, ...]) -> tuple[ReplicaRecord, Launch]:
        port = find_free_port(self._host, {record.port for record in self._records.read_records()})
        claims = describe_claims(request.claims, gpus)
        try:
            launch = self._commands.render_command(
                request.definition, request.served_name, port, claims, index=request.id.index
            )
        except RENDER_ERRORS as error:
            raise no_command_error(request.served_name, error) from error
        record = ReplicaRecord(
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

    def _spawn(
        self,
        record: ReplicaRecord,
        launch: Launch,
        token: str,
        gpu_env: Mapping[str, str],
        children: MutableMapping[str, Child],
    ) -> Process:
        work_dir = self._work_dir / record.name
        work_dir.mkdir(mode=0o700, exist_ok=True)
        for folder in launch.folders:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        env = inherited_environment(os.environ) | dict(launch.env) | dict(gpu_env)
        env |= mark_variables(self._instance, record.name, record.start_id)
        if launch.token_env is not None:
            env[launch.token_env] = token
        log_fd = self._logs.open_log(record.name)
        try:
            child = spawn_engine(launch.argv, env, work_dir, log_fd)
        finally:
            os.close(log_fd)
        stat = read_stat(child.pid)
        assert stat is not None, "a child that was not reaped has its entry"
        children[record.name] = child
        self._records.note_started(record.name, stat.process)
        return stat.process

    def _undo_start(self, name: str) -> None:
        if not self._logs.is_written_to(name):  # else it is another process's, which goes on in the folder and the log
            self._logs.retire_log(name)
            shutil.rmtree(self._work_dir / name, ignore_errors=True)
        self._records.remove_record(name)

    def _claimed_gpus(self, claims: Mapping[str, int]) -> tuple[Gpu, ...]:
        if not claims.keys() - {HOST}:
            return ()
        gpus = self._nvml.read_gpus()
        return find_claimed_gpus(claims, gpus, self._nvml.reason, self._nvml.unread_gpus)
