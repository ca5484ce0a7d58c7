"""What runs on a host that joined over Ray: one actor, which answers requests with the runtime of that host, and says
when something changes there. Settings are those of the environment in which `ray start` was run on the host.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import platform
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the bridge imports this file, and needs none of it
    from controller.runtimes.cluster.host_service import HostService

log = logging.getLogger(__name__)

NAME_VARIABLE: Final = "ROUNDHOUSE_HOST_NAME"
LABELS_VARIABLE: Final = "ROUNDHOUSE_HOST_LABELS"
"""Comma-separated, as `disk=fast,room=2`."""
ADDRESS_VARIABLE: Final = "ROUNDHOUSE_HOST_ADDRESS"
JOIN_VARIABLE: Final = "ROUNDHOUSE_HOST_JOIN"
"""Another text in each run of `roundhouse join`."""
LOCK_NAME: Final = "host.lock"
"""In the state folder: held by the one actor that may act there. It holds the installation's name."""
LOCK_WAIT_S: Final = 5.0
"""Seconds for which an earlier actor may hold the lock: it ends with its raylet."""
KEPT_S: Final = 300.0
"""Seconds for which the answer of a request is kept, for a controller whose bridge has died meanwhile."""
KEPT_BYTES: Final = 4096
"""Length of an answer above which it is not kept: only requests that read have those, and may be done again."""


class HostActor:
    """The actor. Its methods take and return only text, numbers and bytes, because the caller may be of another version
    of Roundhouse."""

    def __init__(self) -> None:
        self._service: HostService | None = None
        self._lock: int | None = None
        self._hello: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._changes = 0
        self._changed = asyncio.Event()
        self._requests: dict[str, asyncio.Task[bytes]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def open_host(self, instance: str) -> str:
        """Open the runtime of this host for an installation, once, and return who the host is, as a JSON object:
        `name`, `address`, `labels`, `versions`, `schema_version`, and `refusal`, why it cannot be used (null: it
        can)."""
        async with self._opening:
            if self._service is None:
                try:
                    refusal = await self._open_service(instance)
                except Exception as error:  # whatever it is: the host is there, and the operator is to read why
                    log.exception("the host cannot be opened")
                    refusal = f"it cannot be opened: {error}"
                self._hello = describe_host(os.environ) | {"refusal": refusal}
        return json.dumps(self._hello)

    async def _open_service(self, instance: str) -> str | None:
        from common.atomic_write import narrow_files
        from controller.runtimes import open_runtime, read_memory_limit
        from controller.runtimes.cluster.carrier import repeat_work
        from controller.runtimes.cluster.host_service import HostService
        from controller.runtimes.cluster.relay_keeper import open_relay
        from controller.settings import load_settings
        from controller.transfers_client import TransfersClient, transfers_address

        if "OMP_NUM_THREADS" not in read_own_environment():
            os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1, and engines would inherit that
        settings = load_settings().model_copy(update={"hosts": ()})
        state = settings.state.absolute()
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (refusal := await self._take_lock(state / LOCK_NAME, instance)) is not None:
            return refusal
        narrow_files(state)
        runtime = await open_runtime(settings, instance)
        memory_mib, is_limited = read_memory_limit(settings)
        models = settings.models.absolute()
        host = describe_host(os.environ)
        self._service = HostService(
            runtime,
            models=models,
            transfers=TransfersClient(transfers_address(settings.transfers_address, settings.transfers_token_file)),
            memory_mib=memory_mib,
            is_memory_limited=is_limited,
            relay=open_relay(settings, state, host["name"], host["address"] or "127.0.0.1"),
        )
        self._watch = asyncio.create_task(repeat_work(self._follow_runtime, "following the runtime", 1.0))
        return None

    async def _take_lock(self, path: Path, instance: str) -> str | None:
        """Return why the state folder cannot be used; None: its lock is held now."""
        lock = self._lock if self._lock is not None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # At first only: while it waits, a host that is refused and asks again has no heartbeat.
        ends_at = time.monotonic() + (0.0 if self._hello else LOCK_WAIT_S)
        while self._lock is None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
            except BlockingIOError:
                if time.monotonic() >= ends_at:
                    os.close(lock)
                    return f"another host has the same state folder, {path.parent}: give each its own"
                await asyncio.sleep(0.1)
        owner = os.pread(lock, 64, 0).decode(errors="replace").strip()
        if owner and owner != instance:
            return f"its state folder {path.parent} is of installation {owner}, not of {instance}: give it another one"
        os.pwrite(lock, f"{instance}\n".encode(), 0)
        return None

    async def _follow_runtime(self) -> None:
        assert self._service is not None
        async for _ in self._service.runtime.watch_events():
            self._changes += 1
            self._changed.set()

    async def wait_change(self, seen: int, wait_s: float) -> int:
        """Return the number of changes so far, as soon as it is another one than `seen`, and after `wait_s` seconds at
        the latest: the host's heartbeat."""
        if self._changes == seen:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
        return self._changes

    async def answer_request(self, key: str, method: str, payload: bytes) -> bytes:
        """Do what a request asks, and return a HostReply as JSON. A request with the key of an earlier one asks for the
        answer of that: it is done once."""
        if self._service is None:
            raise RuntimeError("the host is not open")
        task = self._requests.get(key)
        if task is None:
            task = self._requests[key] = asyncio.create_task(self._service.answer_request(method, payload))
            task.add_done_callback(lambda task: self._keep_answer(key, task))
        return await asyncio.shield(task)

    def _keep_answer(self, key: str, task: asyncio.Task[bytes]) -> None:
        is_kept = not task.cancelled() and len(task.result()) <= KEPT_BYTES
        asyncio.get_running_loop().call_later(KEPT_S if is_kept else 0.0, self._requests.pop, key, None)


def read_own_environment() -> frozenset[str]:
    """Return the names of the variables with which this process was started."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return frozenset(each.partition(b"=")[0].decode(errors="replace") for each in entries)


def describe_host(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return who this host is, by the variables of its environment."""
    from contract.hosts import HOSTS_VERSION
    from controller import __version__

    labels = (each.partition("=") for each in environment.get(LABELS_VARIABLE, "").split(",") if each.strip())
    return {
        "name": environment.get(NAME_VARIABLE) or socket.gethostname(),
        "address": environment.get(ADDRESS_VARIABLE) or None,
        "labels": {label.strip(): value.strip() for label, _, value in labels},
        "versions": {"roundhouse": __version__, "python": platform.python_version()},
        "schema_version": HOSTS_VERSION,
        "join": environment.get(JOIN_VARIABLE, ""),
    }
