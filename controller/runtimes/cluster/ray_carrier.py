"""Hosts that joined over Ray. Ray itself is in a child process, the bridge, which is started again when it ends, is
silent or cannot connect: nothing that Ray does blocks the controller.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from common.atomic_write import write_atomic
from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.cluster.bridge import Frame, pack_frame, read_frame
from controller.runtimes.cluster.carrier import (
    CarriedHost,
    CarrierDownError,
    HostRefusedError,
    HostSilentError,
    repeat_work,
)
from controller.settings import ControllerSettings

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 0.8
"""Seconds between two heartbeats."""
MUTE_S: Final = 15.0
"""Seconds without a beat after which the bridge is killed."""
OPENING_S: Final = 30.0
"""Seconds that the start waits for the bridge to have asked every host, before those not heard count as silent."""
BLIND_S: Final = 150.0
"""Seconds without a connected bridge for which the hosts count as heard: it is the carrier that is away. Ray's head may
be back after 90 s, and its nodes join again then."""
REJOIN_S: Final = 15.0
"""Seconds after that in which they join again, and count as heard, too."""
UNHEARD_S: Final = 5.0
"""Seconds without a heartbeat before that after which it is the host that is away."""
AGAIN_S: Final = 0.25
"""Seconds until the bridge is started again, at first. They double up to `MOST_AGAIN_S`."""
MOST_AGAIN_S: Final = 5.0

RAY_VARIABLES: Final[Mapping[str, str]] = {
    # Engines are children of the host's actor, and outlive it.
    "RAY_kill_child_processes_on_worker_exit": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    # Ours are the heartbeats that notice a host's silence. Ray gives a node up after half a minute: until then a cut
    # heals without a new start of Ray there. Tried with a few seconds, a cut of 10 s cost 34 s more.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "5",
    # A node that was cut off notices within seconds that it was given up: tried without, it took 34 s to join again.
    "RAY_grpc_client_keepalive_time_ms": "2000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
    "RAY_grpc_keepalive_time_ms": "2000",
    "RAY_grpc_keepalive_timeout_ms": "3000",
    # Ray keeps out of the machine's memory: engines are no tasks of its own.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DEDUP_LOGS": "0",
    # The actor runs what has been tried in asyncio's own loop.
    "RAY_USE_UVLOOP": "0",
}
"""Variables of every process of Ray, on the head and on hosts."""


def build_ray_environment(token: Path, tls: tuple[Path, Path, Path] | None) -> dict[str, str]:
    """Return the variables of every process of Ray on a machine. `token`: a file that holds it. `tls`: certificate,
    key and the authority's certificate, as PEM; None: nothing is encrypted."""
    environment = {**RAY_VARIABLES, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USE_TLS": "0"}
    if tls is not None:
        names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
        environment |= {"RAY_USE_TLS": "1", **dict(zip(names, map(str, tls), strict=True))}
    return environment


class _KeptHost(BaseModel):
    address: str | None = None
    since: float = 0.0
    labels: dict[str, str] = {}
    node: str = ""
    is_expelled: bool = False
    join: str = ""
    """The run of `roundhouse join` that it came from."""


class _KeptHosts(BaseModel):
    """The file of the hosts that were admitted or expelled: the next controller lists also those that are silent."""

    schema_version: int = 1
    hosts: dict[str, _KeptHost] = {}


@dataclass(slots=True)
class _RayHost:
    kept: _KeptHost
    last_heard: float | None = None
    heard_at: float = 0.0
    """The same, monotonic."""
    versions: dict[str, str] = field(default_factory=dict)
    refusal: str | None = None


@dataclass(slots=True)
class _Request:
    frame: dict[str, Any]
    answer: asyncio.Future[bytes]


class RayCarrier:
    """A HostCarrier over Ray. A request that is under way when the bridge dies is sent again by the next one, and is
    done once."""

    heartbeat_s = HEARTBEAT_S

    def __init__(
        self,
        address: str,
        instance: str,
        environment: Mapping[str, str],
        *,
        file: Path,
        log_file: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "controller.runtimes.cluster.bridge"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`address`: that of Ray's head on this machine, as `10.0.0.1:6379`. `environment`: variables of Ray for the
        bridge. `file`: where the hosts are kept. `log_file`: what the bridge prints; None: it is lost. `command` starts
        the bridge, and gets the number of its socket as argument. `clock` returns Unix time."""
        self._first = {"address": address, "instance": instance, "heartbeat_s": HEARTBEAT_S}
        self._environment = dict(environment)
        self._file = file
        self._log_file = log_file or Path(os.devnull)
        self._command = tuple(command)
        self._clock = clock
        self._hosts: dict[str, _RayHost] = {}
        self._requests: dict[int, _Request] = {}
        self._number = 0
        self._keys = secrets.token_hex(8)
        self._writer: asyncio.StreamWriter | None = None
        """To the connected bridge. None: there is none."""
        self._connected_at = 0.0
        """Since when (monotonic)."""
        self._blind_since = time.monotonic()
        """Since when no bridge has seen the hosts (monotonic)."""
        self._seen_at: float | None = None
        """Since when one has (monotonic). None: none does."""
        self._has_seen = asyncio.Event()
        self._problem = "the bridge to Ray has not connected yet"
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Start the bridge, and wait for it, not for a host."""
        await asyncio.to_thread(self._read_file)
        self._running = asyncio.create_task(repeat_work(self._run_bridges, "the bridge to Ray", AGAIN_S))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_seen.wait(), OPENING_S)

    # The hosts

    def list_hosts(self) -> tuple[CarriedHost, ...]:
        """Return the hosts that are not expelled. While there is no bridge, none is silent for it."""
        listed = []
        for name, host in sorted(self._hosts.items()):
            if not host.kept.is_expelled:
                is_excused = self._is_excused(host)
                heard = self._clock() if is_excused else host.last_heard
                kept = (host.kept.address, host.kept.since, heard, host.versions, host.kept.labels)
                listed.append(CarriedHost(name, *kept, host.refusal, is_excused))
        return tuple(listed)

    def _is_blind(self) -> bool:
        return self._seen_at is None and time.monotonic() - self._blind_since < BLIND_S

    def _is_excused(self, host: _RayHost) -> bool:
        """Whether a host that was heard is not heard because no bridge is there, or none was until a moment ago."""
        if host.last_heard is None or host.heard_at < self._blind_since - UNHEARD_S:
            return False
        if self._writer is not None and host.heard_at >= self._connected_at:
            return False
        return self._is_blind() if self._seen_at is None else time.monotonic() < self._seen_at + REJOIN_S

    def _read_file(self) -> None:
        try:
            kept = _KeptHosts.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            log.warning("hosts that are silent now are not known: %s cannot be read: %s", self._file, error)
            return
        self._hosts = {name: _RayHost(each) for name, each in kept.hosts.items()}

    async def _keep_hosts(self) -> None:
        kept = _KeptHosts(hosts={name: host.kept for name, host in sorted(self._hosts.items())})
        try:
            await asyncio.to_thread(self._write_file, kept.model_dump_json(indent=1).encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)

    def _write_file(self, content: bytes) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._file, content)

    async def watch(self) -> AsyncIterator[str]:
        """Yield the name of a host that is heard again, or where something may have changed."""
        while not self._is_closed:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            for name in sorted(changed):
                yield name

    def _note_change(self, name: str) -> None:
        self._changed.add(name)
        self._wake.set()

    async def admit(self, host: str) -> None:
        """Admit a host that was expelled. Raises HostRefusedError if there never was one of this name."""
        await self._set_expelled(host, False)

    async def expel(self, host: str) -> None:
        """Forget a host until it is admitted, also over restarts of the controller."""
        if host in self._hosts:
            self._hosts[host].last_heard = None
            await self._set_expelled(host, True)

    async def _set_expelled(self, host: str, is_expelled: bool) -> None:
        if host not in self._hosts:
            raise HostRefusedError(f"there is no host {host}")
        known = self._hosts[host]
        known.kept = known.kept.model_copy(update={"is_expelled": is_expelled})
        await self._keep_hosts()
        self._note_change(host)

    # Requests

    async def call(self, host: str, method: str, payload: bytes, deadline_s: float) -> bytes:
        """Send a request to a host. Raises also CarrierDownError, if there was no bridge until the deadline."""
        known = self._hosts.get(host)
        if known is None or known.kept.is_expelled:
            raise HostRefusedError(f"host {host} is not admitted")
        if known.refusal is not None:
            raise HostRefusedError(f"host {host}: {known.refusal}")
        self._number += 1
        number = self._number
        frame = {"id": number, "key": f"{self._keys}-{number}", "host": host, "method": method}
        frame |= {"payload": payload.decode(), "deadline_s": deadline_s}
        request = _Request(frame, asyncio.get_running_loop().create_future())
        self._requests[number] = request
        try:
            self._send(frame)
            async with asyncio.timeout(deadline_s):
                return await request.answer
        except TimeoutError:
            if self._is_excused(known) or (self._writer is None and self._is_blind()):
                raise CarrierDownError(self._problem) from None
            raise HostSilentError(f"host {host} does not answer within {deadline_s:g} s") from None
        finally:
            del self._requests[number]
            if request.answer.cancelled():  # nobody waits for it: a start may not come late
                self._send({"withdraw": number})

    def _send(self, frame: Frame) -> None:
        if self._writer is not None:
            self._writer.write(pack_frame(frame))

    # The bridge

    async def _run_bridges(self) -> None:
        """Have a bridge, for ever."""
        pause_s = AGAIN_S
        while True:
            try:
                was_connected = await self._run_bridge()
            except OSError as error:
                was_connected, self._problem = False, f"the bridge to Ray cannot be started: {error}"
            pause_s = AGAIN_S if was_connected else min(pause_s * 2, MOST_AGAIN_S)
            log.warning("%s; it is started again", self._problem)
            await asyncio.sleep(pause_s)

    async def _run_bridge(self) -> bool:
        """Run one bridge until it ends, and kill it if it is mute. Returns whether it was connected."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        with theirs, self._log_file.open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **self._environment},
                )
            except BaseException:
                writer.transport.abort()
                raise
        try:
            writer.write(pack_frame(self._first))
            return await self._hear_bridge(reader, writer)
        finally:
            self._writer = None
            if self._seen_at is not None:
                self._seen_at, self._blind_since = None, time.monotonic()
            writer.transport.abort()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _hear_bridge(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self._problem = "the bridge to Ray has ended"
        while True:
            try:
                frame = await asyncio.wait_for(read_frame(reader), MUTE_S)
            except TimeoutError:
                self._problem = f"the bridge to Ray was mute for {MUTE_S:g} s"
                return self._writer is not None
            if frame is None:
                return self._writer is not None
            if self._writer is None and frame.get("is_connected"):
                self._writer, self._connected_at = writer, time.monotonic()
                for request in self._requests.values():
                    self._send(request.frame)
            await self._take_frame(frame)

    async def _take_frame(self, frame: dict[str, Any]) -> None:
        match frame["kind"]:
            case "answer":
                self._take_answer(frame)
            case "heard":
                if (host := self._hosts.get(frame["name"])) is not None and not host.kept.is_expelled:
                    host.last_heard, host.heard_at = self._clock(), time.monotonic()
                    if frame["is_changed"]:
                        self._note_change(frame["name"])
            case "host":
                await self._take_host(frame)
            case "gone":
                self._note_change(frame["name"])
            case "seen":
                self._seen_at = time.monotonic()
                self._has_seen.set()
            case "failed":
                self._problem = f"Ray cannot be used: {frame['reason']}"

    def _take_answer(self, frame: dict[str, Any]) -> None:
        request = self._requests.get(frame["id"])
        if request is None or request.answer.done():
            return
        if "payload" in frame:
            request.answer.set_result(frame["payload"].encode())
        else:
            request.answer.set_exception(HostSilentError(frame["silent"]))

    async def _take_host(self, frame: dict[str, Any]) -> None:
        name, node = frame["name"], frame["node"]
        host = self._hosts.setdefault(name, _RayHost(_KeptHost()))
        is_new = host.kept.node != node
        join = frame.get("join", "")
        kept = host.kept.model_copy(
            update={
                "address": frame["address"],
                "labels": frame["labels"],
                "node": node,
                "join": join,
                # Who was forgotten comes back by a join that began after that, and not by itself.
                "is_expelled": host.kept.is_expelled and join == host.kept.join,
                "since": self._clock() if is_new else host.kept.since,
            }
        )
        host.versions, host.refusal = frame["versions"], frame["refusal"]
        if kept != host.kept:
            host.kept = kept
            await self._keep_hosts()
        self._note_change(name)

    async def close(self) -> None:
        """End `watch` and the bridge. Actors and engines go on."""
        self._is_closed = True
        self._wake.set()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def open_ray_hosts(settings: ControllerSettings, instance: str) -> RayCarrier:
    """Return a carrier of the hosts that joined the head of Ray that `settings.hosts` names, on this machine. Token and
    certificate are those of the state folder, as `roundhouse head` made them. Blocks. Raises RuntimeUnavailableError if
    Ray is not installed, or they are missing."""
    if find_spec("ray") is None:
        raise RuntimeUnavailableError("ROUNDHOUSE_HOSTS names Ray, which is not installed: install roundhouse[cluster]")
    from controller.runtimes.cluster.material import (  # its `cryptography` comes with the extra, too
        MATERIAL_NAME,
        HostCredentials,
        MaterialError,
        cluster_folder,
        read_material,
    )

    state = settings.state.absolute()
    try:
        is_insecure = read_material(cluster_folder(state) / MATERIAL_NAME).is_insecure
    except MaterialError as error:
        raise RuntimeUnavailableError(f"ROUNDHOUSE_HOSTS names Ray, and this is no head: {error}") from error
    files = HostCredentials.in_state(state)
    return RayCarrier(
        settings.hosts[0].removeprefix("ray:"),
        instance,
        build_ray_environment(files.token, None if is_insecure else (files.certificate, files.key, files.authority)),
        file=state / "hosts" / "joined.json",
        log_file=state / "logs" / "bridge.log",
    )
