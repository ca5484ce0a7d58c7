"""Spawns engines: environment, port and session of a new process, and the exit code when it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from controller.engines.base import Engine
from controller.gpus import Gpu
from controller.runtimes.base import StartError
from controller.runtimes.process.groups import START_ENV

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
    another port. Raises StartError if the host gives no port, or only taken ones in several tries.
    """
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
    must reap it.

    `log` is the file descriptor for its stdout and stderr, which stays open here. `env` is its whole environment.
    Raises StartError if the program cannot be started; permanent if it is missing or not executable, or if the command
    line or environment is invalid.
    """
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
        """Return the exit code, negative for a signal, and reap the process if it has ended.

        None while the process runs, or if the code is lost because something else reaped it.
        """
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
