"""Starts engines as processes: checks and command lines, and records, one file each, by which a restarted controller
finds its engines. A record exists at every moment of a start.

Records of other instances are never changed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from common.atomic_write import write_atomic
from contract.desired import Definition
from controller.artifacts.model_roots import ModelRoots
from controller.engines import get_engine
from controller.engines.base import ClaimedGpu, Engine, Launch, RenderContext
from controller.hosts import HOST, Gpu
from controller.runtimes.base import (
    RENDER_ERRORS,
    Rendered,
    RuntimeUnavailableError,
    StartError,
    StartRequest,
    no_command_error,
)
from controller.runtimes.gpus import describe_claims, find_claimed_gpus, visible_gpus
from controller.runtimes.model_files import check_model, find_engine_paths
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.groups import START_ENV, Process, boot_id, read_stat
from controller.runtimes.process.logs import ProcessLogs
from controller.state import ReplicaId

log = logging.getLogger(__name__)


_PACKAGES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "llama_server": ("xllamacpp", "embedded"),
        "llama_cpp": ("llama_cpp", "llama-cpp"),
        "vllm": ("vllm", "vllm"),
        "ct2": ("ctranslate2", "ct2"),
        "exllamav3": ("exllamav3", "exllamav3"),
        "onnx": ("onnxruntime", "onnx"),
        "litert_lm": ("litert_lm", "litert-lm"),
        "mcp": ("mcp", "mcp"),
    }
)
"""Worker engine to the Python package that it imports, and the extra of `roundhouse` that installs the package."""
_HINTS: Final[Mapping[str, str]] = MappingProxyType(
    {"vllm": ": install vLLM, or name its program as vllm_serve_binary, or take the backend vllm"}
)
"""Program to a hint for when it is missing."""


def check_program(argv: Sequence[str]) -> str | None:
    """Return what an engine's command line lacks on this host, as a sentence for the operator; None if nothing is
    missing. Imports and starts nothing. The program must be a name on PATH or an absolute path. Of an MCP server, the
    server's own program is checked as well. Packages are checked only for engines that run with this Python
    interpreter. With another one, the engine's last log line says what is missing."""
    program = argv[0]
    if problem := _check_executable(program):
        return problem
    worker_engine = argv[3] if tuple(argv[1:3]) == ("-m", "worker") else None
    if program == sys.executable and worker_engine is not None and worker_engine in _PACKAGES:
        package, extra = _PACKAGES[worker_engine]
        if importlib.util.find_spec(package) is None:
            return f"Python package {package} is not installed: pip install 'roundhouse[{extra}]'"
    if worker_engine == "mcp":
        # What follows the second `--` is the server's own command.
        own_end = argv.index("--", argv.index("--") + 1)
        return _check_executable(argv[own_end + 1])
    return None


def _check_executable(program: str) -> str | None:
    if "/" not in program:
        hint = _HINTS.get(program, "")
        return None if shutil.which(program) else f"program {program} is not on PATH{hint}"
    path = Path(program)
    if not path.is_absolute():
        return f"program {program} is a relative path: give an absolute one, or a name on PATH"
    if not path.exists():
        return f"program {program} does not exist"
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"program {program} is not an executable file"
    return None


def find_executables(python: str = sys.executable) -> Mapping[str, str]:
    """Return the absolute paths of the programs of engines on this host, by name; a missing program is left out.
    `python`: path of the interpreter that runs the workers."""
    paths = {"python": python, "llama-server": shutil.which("llama-server")}
    return {name: path for name, path in paths.items() if path}


@dataclass(frozen=True, slots=True)
class HostCommands:
    """What the command lines of all engines of one host have in common. It starts nothing and writes nothing."""

    roots: ModelRoots
    """Absolute folders of models."""
    cache_dir: Path
    """Folder where engines keep what they compile or download. It need not exist."""
    host: str
    executables: Mapping[str, str]
    """As `find_executables` returns them."""

    def render_command(
        self,
        definition: Definition,
        served_name: str,
        port: int,
        gpus: tuple[ClaimedGpu, ...] = (),
        host: str | None = None,
        index: int = 0,
    ) -> Launch:
        """Return how to start replica `index` of a model. `gpus`: its GPUs in PCI order; empty: none, or a preflight.
        The variables of `visible_gpus` are not in `env`. `host` None: the host of all engines. Reads the disk. Raises
        one of `RENDER_ERRORS` if the definition yields no command line, OSError if a path cannot be looked at."""
        engine = get_engine(definition)
        context = RenderContext(
            runtime="process",
            served_name=served_name,
            models_root=PurePosixPath(self.roots.resolve().first),
            host=host or self.host,
            port=port,
            cache_dir=PurePosixPath(self.cache_dir),
            executables=self.executables,
            index=index,
            gpus=gpus,
            model_paths=find_engine_paths(self.roots, engine.list_paths(definition)),
            python_path=os.environ.get("PYTHONPATH", ""),
        )
        return engine.render_command(definition, context)

    def check_command(self, definition: Definition, served_name: str) -> str | None:
        """Return why no process could be started for a definition, by its command line, its program and the Python
        package that it needs; None: it could. The model's files are not checked. Raises nothing."""
        try:
            return check_program(self.render_command(definition, served_name, port=1).argv)
        except RENDER_ERRORS as error:
            return str(no_command_error(served_name, error))
        except OSError as error:
            return f"the program of {served_name} cannot be looked at: {error}"


SCHEMA_VERSION: Final = 1
COPY_NAME: Final = ".replica.json"
"""Name of a record's copy in the engine's working folder."""


class ReplicaRecord(BaseModel):
    """One start of a replica. Written before the engine is spawned, and again with its pid. It holds no secret.

    Times are Unix times in seconds.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    schema_version: Literal[1] = SCHEMA_VERSION
    instance: str
    name: str
    model: str
    index: int
    spec_hash: str
    attempt: int
    start_id: str
    """Random id in the environment of the engine, which identifies the processes of this start."""
    boot_id: str
    """`boot_id()` at the start. After a reboot, pids and start times in the record mean nothing."""
    host: str
    port: int
    argv: tuple[str, ...]
    claims: dict[str, int]
    created_at: float
    pid: int | None = None
    start_ticks: int | None = None
    """Start time of the engine's process, as in `Process`."""
    started_at: float | None = None
    ended: bool = False
    """True once every process of the replica was found gone."""
    exit_code: int | None = None
    """Exit code of the engine, negative for a signal. None: it runs, or the code is not known."""

    @property
    def id(self) -> ReplicaId:
        """The replica's id, including the attempt."""
        return ReplicaId(self.model, self.index, self.spec_hash, self.attempt)

    @property
    def leader(self) -> Process | None:
        """The engine's process; None while its pid is not known."""
        if self.pid is None or self.start_ticks is None:
            return None
        return Process(self.pid, self.start_ticks)


def keep_copy(record: ReplicaRecord, work_dir: Path) -> None:
    """Copy the record of a running engine to the engine's working folder, unless there is a copy. Blocks. Does nothing
    if the copy cannot be written."""
    path = work_dir / COPY_NAME
    with suppress(OSError):
        if not path.exists():
            write_atomic(path, record.model_dump_json(indent=1).encode(), durable=False)


def read_copies(work: Path, instance: str) -> list[ReplicaRecord]:
    """Return the copies of this instance's records in the working folders below `work`, also of engines that have
    ended. Leaves out what cannot be read. Blocks."""
    copies = []
    for path in work.glob(f"rh-{instance}-*/{COPY_NAME}"):
        with suppress(OSError, ValidationError):
            copy = ReplicaRecord.model_validate_json(path.read_bytes())
            if (copy.instance, copy.name) == (instance, path.parent.name):
                copies.append(copy)
    return copies


class Records:
    """The folder of records. Thread-safe; methods block. Only the controller that holds the state folder's lock may use
    it. Making one creates the folder, and raises OSError where it cannot be made. Methods raise RuntimeUnavailableError
    if a record cannot be parsed, OSError if the folder or a record cannot be read, and ValueError for a name of another
    instance."""

    def __init__(self, folder: Path, instance: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._instance = instance
        self._lock = threading.Lock()

    def read_records(self) -> list[ReplicaRecord]:
        """Return every record of this instance, in order of replica names, also those of ended replicas. Raises OSError
        and RuntimeUnavailableError where a record cannot be read; it is then unknown which engines run."""
        with self._lock:
            return [record for path in self._paths() if (record := self._read(path)) is not None]

    def read_record(self, name: str) -> ReplicaRecord | None:
        """Return the record of one replica; None if there is none, or if the file names another instance. Raises
        ValueError for a name of another instance, OSError, and RuntimeUnavailableError if it cannot be parsed."""
        with self._lock:
            return self._read(self._path(name))

    def create_record(self, record: ReplicaRecord) -> bool:
        """Write a new record, and return True once it is on disk. Return False, and write nothing, if there is a record
        of that name. Raises OSError if it cannot be written, and ValueError for a name of another instance."""
        with self._lock:
            path = self._path(record.name)
            if path.exists():
                return False
            write_atomic(path, record.model_dump_json(indent=1).encode())
            return True

    def update_record(self, name: str, **changes: Any) -> ReplicaRecord | None:
        """Change fields of a record, unvalidated, and return the changed record; None: it is gone. A failed write, as
        on a full disk, is logged, and the changed record is returned all the same: the next observation of the engine
        makes the same changes. Raises ValueError, OSError and RuntimeUnavailableError as `read_record` does."""
        with self._lock:
            path = self._path(name)
            record = self._read(path)
            if record is None:
                return None
            changed_record = record.model_copy(update=changes)
            try:
                if changed_record != record:
                    write_atomic(path, changed_record.model_dump_json(indent=1).encode())
            except OSError as error:
                log.warning("%s cannot be written: %s", path, error.strerror or error)
            return changed_record

    def note_started(self, name: str, leader: Process) -> ReplicaRecord | None:
        """Write into a record that the engine was started as the process `leader`, now, and return the changed record;
        None: it is gone. Does not raise for a failed write, else as `update_record` does."""
        return self.update_record(name, pid=leader.pid, start_ticks=leader.start_ticks, started_at=time.time())

    def remove_record(self, name: str) -> None:
        """Delete the record of a replica. Does nothing if there is none. Raises OSError if it cannot be deleted, and
        ValueError, OSError and RuntimeUnavailableError as `read_record` does."""
        with self._lock:
            path = self._path(name)
            if self._read(path) is not None:
                path.unlink()

    def _paths(self) -> Iterator[Path]:
        # Not glob, which finds nothing in a folder that is missing or unreadable: unknown is not empty.
        own_paths = (path for path in self._folder.iterdir() if path.name.startswith(f"rh-{self._instance}-"))
        yield from sorted(path for path in own_paths if path.suffix == ".json")

    def _path(self, name: str) -> Path:
        if not name.startswith(f"rh-{self._instance}-") or "/" in name:
            raise ValueError(f"{name!r} is not a replica of instance {self._instance}")
        return self._folder / f"{name}.json"

    def _read(self, path: Path) -> ReplicaRecord | None:
        try:
            record = ReplicaRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            if not self._folder.is_dir():  # as on a volume that is not mounted: it is unknown what runs
                raise
            return None
        except ValidationError as error:
            fields = ", ".join(sorted({str(each["loc"][0]) for each in error.errors() if each["loc"]})) or "not JSON"
            raise RuntimeUnavailableError(
                f"{path} is no record of schema version {SCHEMA_VERSION} ({fields}): an engine may run that cannot be "
                "told. Start the version of Roundhouse that wrote it, or stop its process and delete the file"
            ) from error
        return record if record.instance == self._instance else None


REPLICA_ENV: Final = "ROUNDHOUSE_REPLICA"
INSTANCE_ENV: Final = "ROUNDHOUSE_INSTANCE"

_INHERITED: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "OMP_NUM_THREADS"),
        *("CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "CUDA_MODULE_LOADING"),
    }
)
"""Variables of the controller that engines inherit: paths and locale. No proxies, no settings, no secrets."""

_PORT_TRIES: Final = 32


def inherited_environment(controller: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the controller's environment that engines inherit (paths, locale, places of caches and of
    CUDA; no proxies, settings or secrets), and PYTHONUNBUFFERED=1. `controller` is that environment; it is not
    changed."""
    kept_variables = {key: value for key, value in controller.items() if key in _INHERITED or key.startswith("LC_")}
    # Without it, a Python engine buffers what it prints to a file, and loses it when killed.
    return {"PYTHONUNBUFFERED": "1"} | kept_variables


def mark_variables(instance: str, name: str, start_id: str) -> dict[str, str]:
    """Return the environment variables that mark an engine's processes: instance, replica name and start id. By the
    start id, the processes are found again."""
    return {INSTANCE_ENV: instance, REPLICA_ENV: name, START_ENV: start_id}


def check_gpu_support(engine: Engine[Any], gpus: Sequence[Gpu]) -> None:
    """Raise a permanent StartError if one of `gpus` is a MIG instance and the engine, as a process, cannot be told to
    use it. The message names the MIG instance. Otherwise do nothing."""
    instance = None if engine.takes_mig_instances else next((gpu for gpu in gpus if gpu.mig is not None), None)
    if instance is not None:
        raise StartError(
            f"{engine.name} as a process cannot use the MIG instance {instance.label}: vLLM takes GPUs by number, and "
            "a MIG instance has only a uuid (vllm-project/vllm#41848). Name whole GPUs in `gpus`, or run it in a "
            "container (ROUNDHOUSE_RUNTIME=docker)",
            permanent=True,
        )


def find_free_port(host: str, taken_ports: Collection[int]) -> int:
    """Return a port on `host` that nothing listens on and that is not among `taken_ports`. The port is not reserved.
    Another program may take the port before the engine listens. Then the engine exits, and its next attempt gets
    another port. Raises StartError if the host gives no port, or only taken ones in several tries."""
    for _ in range(_PORT_TRIES):
        try:
            with socket.create_server((host, 0)) as probe:
                port: int = probe.getsockname()[1]
        except OSError as error:
            raise StartError(f"no port can be had on {host}: {error.strerror or error}") from error
        if port not in taken_ports:
            return port
    raise StartError(f"no port is free on {host}")


def spawn_engine(argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: int) -> Child:
    """Start a program that leads a session of its own, so that it survives the controller, and return it. The caller
    must reap it. `log` is the file descriptor for its stdout and stderr, which stays open here. `env` is its whole
    environment. Raises StartError if the program cannot be started; permanent if it is missing or not executable, or if
    the command line or environment is invalid."""
    try:
        # The runtime reaps the process, perhaps after this object is gone. Setting `returncode` below keeps Popen from
        # warning about that.
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise StartError(f"{argv[0]} cannot be started: {error.strerror}", permanent=True) from error
    except ValueError as error:
        raise StartError(f"the command line or environment cannot be passed: {error}", permanent=True) from error
    except OSError as error:
        raise StartError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
    process.returncode = 0
    return Child(process.pid)


class Child:
    """A child process that must be reaped: call `poll` once it has ended. Thread-safe."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._reaped = False
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, and reap the process if it has ended. None while the process
        runs, or if the code is lost because something else reaped it."""
        with self._lock:
            if not self._reaped:
                self._reap()
            return self._code

    def _reap(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else reaped it: the code is lost
            self._reaped = True
            return
        if pid:
            self._reaped = True
            self._code = os.waitstatus_to_exitcode(status)


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
        work: Path,
        commands: HostCommands,
    ) -> None:
        self._instance = instance
        self._records = records
        self._logs = logs
        self._nvml = nvml
        self._work_dir = work
        self._roots = commands.roots
        self._host = commands.host
        for folder in (work, commands.cache_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._commands = commands
        self._port_lock = threading.Lock()

    def check_preflight(self, model: str, definition: Definition) -> str | None:
        """Return why an engine could not be started, by its files, its program and its command line; None: it could.
        Whether its GPUs are there is not checked. A failed check does not raise. Blocks."""
        problem = check_model(self._roots, get_engine(definition), definition)
        return problem or self._commands.check_command(definition, model)

    def render_replica(self, record: ReplicaRecord, definition: Definition) -> Rendered | None:
        """Return what a replica would be started with now, at the address and with the GPUs in its record. Blocks. None
        if the definition yields no command line, or if one of these GPUs is gone or cannot be read. Raises OSError if a
        path cannot be looked at."""
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
        for path, text in launch.files.items():
            write_atomic(Path(path), text.encode())
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
        try:
            # Else it is another process's, which goes on in the folder and the log.
            if not self._logs.is_written_to(name):
                self._logs.retire_log(name)
                shutil.rmtree(self._work_dir / name, ignore_errors=True)
        finally:
            self._records.remove_record(name)

    def _claimed_gpus(self, claims: Mapping[str, int]) -> tuple[Gpu, ...]:
        if not claims.keys() - {HOST}:
            return ()
        gpus = self._nvml.read_gpus()
        return find_claimed_gpus(claims, gpus, self._nvml.reason, self._nvml.unread_gpus)
