"""Keeps the relay of a host running, tells it the replicas, and tells the controller where the relay has them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from common.atomic_write import write_atomic
from common.host_tls import HostContexts
from common.listening import join_address
from contract.hosts import EngineTls, HostReplica
from controller.runtimes.cluster import host_relay
from controller.settings import ControllerSettings

if TYPE_CHECKING:  # it needs the extra `cluster`, which hosts of one machine are without
    from controller.runtimes.cluster.material import HostCredentials

log = logging.getLogger(__name__)

DOMAIN: Final = "roundhouse.internal"
TABLE_NAME: Final = "relay.json"
TLS_FIELDS: Final = ("authority", "certificate", "key")
OWN_PORTS: Final = 1000
"""Ports after the relay's own that replicas get where there is no TLS."""
LOOK_S: Final = 0.2
"""Seconds between two looks whether the relay runs."""
CHECK_S: Final = 3.0
"""Seconds in which a relay must answer that it is there."""
LONGEST_WAIT_S: Final = 5.0
"""Seconds before a relay that ends at once is started again, at most."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def describe_tls(files: HostCredentials, server_name: str = host_relay.CHECK_NAME) -> EngineTls:
    """Return how a program with these files opens connections through a relay, by default to that itself."""
    return EngineTls(
        server_name=server_name,
        authority=str(files.authority),
        certificate=str(files.certificate),
        key=str(files.key),
    )


def list_relay_names(host: str) -> tuple[str, str]:
    """Return the names that the certificate of a host must have so that its relay may show it."""
    return f"*.{host}.{DOMAIN}", host_relay.CHECK_NAME


def open_relay(settings: ControllerSettings, state: Path, host: str, address: str) -> RelayKeeper | None:
    """Return what keeps the relay of a host with this state folder, name and address; None: it is to have none."""
    if settings.host_relay_port is None:
        return None
    from controller.runtimes.cluster.material import HostCredentials  # the extra `cluster`

    files = None if settings.insecure_private_network else HostCredentials.in_state(state)
    return RelayKeeper(relay_folder(state), host, address, settings.host_relay_port, files)


def relay_folder(state: Path) -> Path:
    """Return the folder of a host's state folder in which its relay has its table."""
    return state / "cluster"


def read_place(state: Path) -> tuple[str, EngineTls | None] | None:
    """Return the address of the relay of the host with this state folder, and how it is asked whether it is there.
    None: it has none. Blocks."""
    try:
        fields = json.loads((relay_folder(state) / TABLE_NAME).read_bytes())
        address, port, paths = fields["address"], fields["port"], [fields[each] for each in TLS_FIELDS]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    tls = (
        None
        if None in paths
        else EngineTls(server_name=host_relay.CHECK_NAME, **dict(zip(TLS_FIELDS, paths, strict=True)))
    )
    return join_address(address, port), tls


def end_relay(state: Path) -> None:
    """End the relay of the host with this state folder, with what is open there, once its engines have ended. Nobody
    may keep it running. Raises OSError."""
    (relay_folder(state) / TABLE_NAME).unlink(missing_ok=True)


def name_server(replica: str, host: str) -> str:
    """Return the server name of a replica. It is another one for each start of it."""
    label = replica if _LABEL.fullmatch(replica) else f"r-{hashlib.sha256(replica.encode()).hexdigest()[:40]}"
    return f"{label}.{host}.{DOMAIN}"


class RelayProblem(NamedTuple):
    """Why a relay cannot be used, and what the host's operator does about it: half sentences."""

    words: str
    remedy: str


async def check_relay(address: str, tls: EngineTls | None, contexts: HostContexts) -> RelayProblem | None:
    """Return why a host's relay cannot be used from here; None: it answers. `address`: with the port. `tls`: for
    `CHECK_NAME`; None: without TLS."""
    host, _, port = address.rpartition(":")
    remedy = f"let the head connect to TCP port {port} there"
    try:
        async with asyncio.timeout(CHECK_S):
            options = contexts.list_options(tls)
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), **options)
            try:
                word = await reader.read(len(host_relay.CHECK_WORD))
            finally:
                writer.transport.abort()
    except TimeoutError:
        return RelayProblem(f"the relay at {address} does not answer", remedy)
    except OSError as error:
        if "SSL" in type(error).__name__:
            words = f"the relay at {address} does not accept the head's certificate, or the head not that one ({error})"
            return RelayProblem(words, "join the host anew")
        return RelayProblem(f"the relay at {address} cannot be reached ({error.strerror or error})", remedy)
    if word != host_relay.CHECK_WORD:
        return RelayProblem(f"what answers at {address} is not the host's relay", "free that port there")
    return None


class RelayKeeper:
    """Keeps the relay of this host running. The relay outlives it, as engines do; what is open there goes on when the
    next keeper starts another one. Use one object in one event loop, and one for a folder."""

    def __init__(self, folder: Path, host: str, address: str, port: int, files: HostCredentials | None) -> None:
        """`folder`: where its table and its log are. `address` and `port`: where the relay listens, at
        which the controller and the gateway reach it. `files` None: without TLS; then the relay has a port of its own
        for each replica, after `port`."""
        self.address = join_address(address, port)
        self.is_insecure = files is None
        self._host = host
        self._place = (address, port)
        self._files = files
        self._path = folder / TABLE_NAME
        self._replicas: dict[str, tuple[str, int, int]] = {}
        """Host and port of each engine by server name, and the port that it has here (0: the relay's)."""
        self._last_port = port
        self._written: bytes | None = None
        self._changing = asyncio.Lock()
        self._own = secrets.token_hex(8)
        """Marks the table as this keeper's: the relay of another one leaves the port to this one's then."""
        self._digest = self._served = ""
        """Of all that a relay reads when it starts: as it is, and as the one that runs has read it."""
        self._listener: socket.socket | None = None
        """The relay's port. None: it could not be listened on yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._retired: list[subprocess.Popen[bytes]] = []
        """Relays that only serve what was open when another one took their place."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to keep the relay running. A second call does nothing."""
        async with self._changing:
            await self._start()

    async def _start(self) -> None:
        if self._task is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(self._read_table)
            await self._write_table()
            self._task = asyncio.create_task(self._keep_running())

    async def publish(self, replicas: Sequence[HostReplica]) -> tuple[HostReplica, ...]:
        """Tell the relay which replicas there are, and return them with the address at which it has them. Raises
        OSError if the table cannot be written."""
        async with self._changing:  # the last word is the one that is written
            await self._start()
            await self._take_replicas(replicas)
            return tuple(self._translate(each) for each in replicas)

    async def _take_replicas(self, replicas: Sequence[HostReplica]) -> None:
        addresses = {name_server(each.name, self._host): _split(each.base_url) for each in replicas if each.base_url}
        before, self._replicas = self._replicas, {}
        kept = {name: before[name] for name in addresses if name in before}
        for name, (engine_host, engine_port) in sorted(addresses.items()):
            own_port = kept[name][2] if name in kept else self._choose_port(kept.values())
            self._replicas[name] = kept[name] = (engine_host, engine_port, own_port)
        await self._write_table()

    def _translate(self, replica: HostReplica) -> HostReplica:
        if replica.base_url is None:
            return replica
        name = name_server(replica.name, self._host)
        if self._files is not None:
            changes = {"base_url": f"https://{self.address}", "tls": EngineTls(server_name=name)}
        else:
            changes = {"base_url": f"http://{self.address.rpartition(':')[0]}:{self._replicas[name][2]}"}
        return replica.model_copy(update=changes)

    def _choose_port(self, taken: Iterable[tuple[str, int, int]]) -> int:
        """Return the port for a further replica. One that was just given back comes last."""
        if self._files is not None:
            return 0
        first, used = self._place[1] + 1, {each[2] for each in taken}
        for step in range(OWN_PORTS):
            port = first + (self._last_port + 1 - first + step) % OWN_PORTS
            if port not in used:
                self._last_port = port
                return port
        raise OSError(f"all {OWN_PORTS} ports of the relay are taken")

    def _read_table(self) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            for name, (host, port, own_port) in json.loads(self._path.read_bytes())["replicas"].items():
                if bool(own_port) is self.is_insecure:
                    self._replicas[name] = (host, port, own_port)
                    self._last_port = max(self._last_port, own_port)

    async def _write_table(self) -> None:
        content = await asyncio.to_thread(self._render_table)
        if content != self._written or not self._path.exists():
            await asyncio.to_thread(write_atomic, self._path, content, durable=False)
            self._written = content

    def _render_table(self) -> bytes:
        files, (address, port) = self._files, self._place
        paths = [] if files is None else [files.authority, files.certificate, files.key]
        parts = [self._own.encode(), *(path.read_bytes() for path in paths)]
        self._digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
        fields = {
            "address": address,
            "port": port,
            **{each: None if files is None else str(getattr(files, each)) for each in TLS_FIELDS},
            "digest": self._digest,
            "replicas": self._replicas,
        }
        return json.dumps(fields, indent=1).encode()

    async def _keep_running(self) -> None:
        loop, wait_s, began_at = asyncio.get_running_loop(), 0.0, 0.0
        while True:
            if not self._is_running():
                await asyncio.sleep(wait_s)
                wait_s, began_at = min(LONGEST_WAIT_S, wait_s * 2 or LOOK_S), loop.time()
                try:
                    await asyncio.to_thread(self._spawn)
                    log.info("started the relay at %s", self.address)
                except OSError as error:
                    log.warning("the relay at %s cannot be started: %s", self.address, error.strerror or error)
            elif loop.time() - began_at > 2 * LONGEST_WAIT_S:
                wait_s = 0.0
            await asyncio.sleep(LOOK_S)

    def _is_running(self) -> bool:
        """Return whether the relay that serves this table runs. One that served another ends by itself."""
        self._retired = [each for each in self._retired if each.poll() is None]
        process = self._process
        if process is not None and (code := process.poll()) is not None:
            log.warning("the relay at %s has ended (%s): %s", self.address, code, self.read_problem())
            process = self._process = None
        if process is not None and self._served != self._digest:
            self._retired.append(process)
            process = self._process = None
        return process is not None

    def _spawn(self) -> None:
        if self._listener is None:
            # One that an earlier keeper has started may listen there until it has seen the new table.
            family = socket.AF_INET6 if ":" in self._place[0] else socket.AF_INET
            listener = socket.socket(family)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind(self._place)
                listener.listen(host_relay.BACKLOG)
            except OSError:
                listener.close()
                raise
            self._listener = listener
        descriptor = self._listener.fileno()
        argv = [sys.executable, "-I", host_relay.__file__, str(self._path), str(descriptor)]
        with self._path.with_suffix(".log").open("ab") as output:
            output.truncate(0)
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[descriptor],
                start_new_session=True,
                cwd="/",
            )
        self._served = self._digest

    def read_problem(self) -> str:
        """Return the last line that the relay has logged. Blocks."""
        with suppress(OSError):
            lines = self._path.with_suffix(".log").read_text(errors="replace").splitlines()
            return lines[-1] if lines else "it said nothing"
        return "it has no log"

    async def close(self) -> None:
        """Stop to keep it running. It runs on as long as there are engines; without any it ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self._listener is not None:
                self._listener.close()
            if not self._replicas:
                await asyncio.to_thread(self._path.unlink, missing_ok=True)


def _split(url: str | None) -> tuple[str, int]:
    parts = urlsplit(url or "")
    return parts.hostname or "", parts.port or 80
