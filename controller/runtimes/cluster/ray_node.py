"""`python -m controller.runtimes.cluster.ray_node head|join ...`: keeps Ray running on one machine, until a
signal ends it or Ray does. `roundhouse head` and `roundhouse join` start it again then.

On a joining host it asks the head's door first, each time, and starts nothing before it was let in. It waits for a head
that does not answer, for ever, and ends with `EXIT_REFUSED` at one that refuses.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import errno
import hashlib
import ipaddress
import os
import platform
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import psutil

from common.line_writer import LineWriter
from common.listening import split_listen_address
from controller import __version__
from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.cluster.bridge import ENGINES_LABEL
from controller.runtimes.cluster.door import DoorError, JoinReply, JoinRequest, ask_door
from controller.runtimes.cluster.host_actor import ADDRESS_VARIABLE, LABELS_VARIABLE, LOCK_NAME, NAME_VARIABLE
from controller.runtimes.cluster.material import (
    HostCredentials,
    JoinMaterial,
    MaterialError,
    Membership,
    cluster_folder,
    read_material,
    write_credentials,
    write_membership,
)
from controller.runtimes.cluster.ray_carrier import build_ray_environment
from controller.runtimes.cluster.relay_keeper import list_relay_names
from controller.settings import SettingsError, load_settings
from controller.state_dir import IDENTITY_NAME, Identity, StateDir, StateError

EXIT_ENDED: Final = 1
EXIT_USAGE: Final = 2
EXIT_ADDRESS: Final = 3
EXIT_REFUSED: Final = 6
NODE_PORT: Final = 2
"""The ports of a host, from the number of the head's on: Ray's node manager, ..."""
OBJECT_PORT: Final = 3
AGENT_PORT: Final = 4
CLIENT_PORT: Final = 5
WORKER_PORTS: Final = (10, 49)
RELAY_PORT: Final = 50
STARTED_S: Final = 40.0
"""Seconds that Ray may take to start."""
ENDS_S: Final = 3.0
"""Seconds that Ray gets to end."""
FIRST_WAIT_S: Final = 0.5
MOST_WAIT_S: Final = 3.0
"""Seconds between two questions at a head that does not answer, at most."""
_SOCKET_BYTES: Final = 42
"""Length of a folder in which the paths of Ray's sockets are not too long."""
_SET_PDEATHSIG: Final = 1
UP_MARK: Final = "ROUNDHOUSE_UP_CHILD"
"""Variable by which `cli.up.supervisor` (its `MARK_ENV`) finds this program again, and nothing that Ray starts."""


class RefusedError(Exception):
    """This machine may not be a host. The message is a sentence without an end."""


def ray_version() -> str | None:
    """Return the version of the installed Ray; None: there is none. It is not imported."""
    try:
        return version("ray") if find_spec("ray") is not None else None
    except PackageNotFoundError:
        return None


def choose_folder(state: Path) -> Path:
    """Return the folder for Ray's sockets and logs. It is in the state folder, or in one of this user's in the folder
    for temporary files if the paths of sockets would be too long."""
    folder = cluster_folder(state.absolute()) / "ray"
    if len(os.fsencode(folder)) <= _SOCKET_BYTES:
        return folder
    name = hashlib.sha256(os.fsencode(state.absolute())).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"rh-{os.getuid()}-{name}" / "ray"


def remove_folder(state: Path) -> None:
    """Remove Ray's sockets and logs of a machine that has ended Ray, and is no head. Blocks."""
    folder = choose_folder(state)
    shutil.rmtree(folder if folder.parent == cluster_folder(state.absolute()) else folder.parent, ignore_errors=True)


def build_ray_command(
    *, name: str, address: str, head: str, is_head: bool, folder: Path, has_engines: bool = True
) -> list[str]:
    """Return the command line of `ray start` for a machine. `head`: address of Ray's head, as `10.0.0.1:8093`; other
    ports follow from that one."""
    port = int(head.rpartition(":")[2])
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    if is_head:
        # The autoscaler is of no use here. Nor is Ray Client, which Ray starts all the same.
        command += ["--head", "--port", str(port), "--include-dashboard", "false", "--no-monitor"]
        command += ["--ray-client-server-port", str(port + CLIENT_PORT)]
    else:
        command += ["--address", head]
    return [
        *command,
        *("--node-ip-address", address, "--node-name", name, "--temp-dir", str(folder)),
        *("--num-cpus", "0", "--num-gpus", "0", "--object-store-memory", "80000000", "--include-log-monitor", "false"),
        *("--labels", f"{ENGINES_LABEL}={'yes' if has_engines else 'no'}"),
        *("--node-manager-port", str(port + NODE_PORT), "--object-manager-port", str(port + OBJECT_PORT)),
        *("--runtime-env-agent-port", str(port + AGENT_PORT)),
        *("--min-worker-port", str(port + WORKER_PORTS[0]), "--max-worker-port", str(port + WORKER_PORTS[1])),
    ]


def build_environment(
    environment: Mapping[str, str], files: HostCredentials, *, is_insecure: bool, gcs: Path | None = None
) -> dict[str, str]:
    """Return the environment of Ray's processes: this one with Ray's variables in it, and none of an operator's. A
    relay outlives `join`, and must not count as this program. `gcs`: where a head keeps its tables, so that it knows
    its hosts after a restart."""
    tls = None if is_insecure else (files.certificate, files.key, files.authority)
    kept = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(gcs)} if gcs is not None else {}
    own = {name: value for name, value in environment.items() if not name.startswith("RAY_") and name != UP_MARK}
    own["ROUNDHOUSE_INSECURE_PRIVATE_NETWORK"] = "true" if is_insecure else "false"
    return {**own, "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1", **build_ray_environment(files.token, tls), **kept}


def read_instance(state: Path) -> str | None:
    """Return the installation that a state folder belongs to; None: to none yet. Blocks. Raises RefusedError if its
    identity is damaged."""
    try:
        return Identity.model_validate_json((state / IDENTITY_NAME).read_bytes()).instance
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        raise RefusedError(f"{state / IDENTITY_NAME} cannot be read or is damaged: restore it") from None
    with suppress(OSError):
        return (state / LOCK_NAME).read_text().strip() or None
    return None


def make_request(
    name: str,
    address: str,
    state: Path,
    runtime: str,
    *,
    ports: Sequence[int] = (),
    intent: Literal["join", "drain", "left"] = "join",
) -> JoinRequest:
    """Return what this machine says to the head's door. `runtime` `auto`: it takes the head's. Blocks. Raises
    RefusedError."""
    return JoinRequest(
        name=name,
        address=address,
        runtime=None if runtime == "auto" else runtime,
        ray=ray_version() or "",
        python=platform.python_version(),
        roundhouse=__version__,
        instance=read_instance(state),
        now=time.time(),
        ports=tuple(ports),
        intent=intent,
    )


def sign_host(material: JoinMaterial, state: Path, name: str, address: str, *, now: float) -> HostCredentials:
    """Write the files that a host of this name and address shows to others. Blocks. Raises OSError."""
    names = [name, "localhost", *list_relay_names(name)]
    return write_credentials(material, state, names, [address, "127.0.0.1"], now=now)


class RayNode:
    """Runs `ray start` once, and watches it: that program goes on when its raylet has ended by itself."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log_file: Path, watched: set[str]
    ) -> None:
        """`watched`: names of its children without which it is of no use."""
        self._command = command
        self._environment = environment
        self._log_file = log_file
        self._watched = watched
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, stop: asyncio.Event) -> str:
        """Run it until it ends, or `stop` is set; then none of its processes is left. Return how it ended, in words.
        Raises OSError."""
        with self._log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=dict(self._environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        try:
            return await self._watch(self._process, stop)
        finally:
            await self._end(self._process)

    async def _watch(self, process: asyncio.subprocess.Process, stop: asyncio.Event) -> str:
        ended = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(stop.wait())
        seen: set[str] = set()
        loop = asyncio.get_running_loop()
        late_at = loop.time() + STARTED_S
        try:
            while not ended.done() and not stopped.done():
                await asyncio.wait({ended, stopped}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                running = _list_children(process.pid)
                seen |= running & self._watched
                if gone := seen - running:
                    return f"{' and '.join(sorted(gone))} ended"
                if loop.time() >= late_at and seen != self._watched:
                    return f"it has not started within {STARTED_S:g} s"
        finally:
            ended.cancel()
            stopped.cancel()
        return "it was told to end" if stop.is_set() else f"it ended with {process.returncode}: {self._read_reason()}"

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), ENDS_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _read_reason(self) -> str:
        lines = [each.strip() for each in self._log_file.read_text(errors="replace").splitlines() if each.strip()]
        return f"{lines[-1][:300] if lines else 'it said nothing'} ({self._log_file})"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _list_children(pid: int) -> set[str]:
    try:
        return {each.name() for each in psutil.Process(pid).children() if each.status() != psutil.STATUS_ZOMBIE}
    except psutil.Error:
        return set()


class _Program:
    """What both kinds of machine do."""

    def __init__(self, arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.arguments = arguments
        self.say = say
        self.settings = load_settings()
        self.state = self.settings.state.absolute()
        self.stop = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop.set)
        return await (self._run_head() if self.arguments.role == "head" else self._run_host())

    async def _run_head(self) -> int:
        arguments = self.arguments
        port = int(arguments.head.rpartition(":")[2])
        if (problem := _find_taken(arguments.address, (port, *_host_ports(port)))) is not None:
            self.say(f"Ray cannot listen on {problem}; choose another with --port")
            return EXIT_ADDRESS
        material = read_material(cluster_folder(self.state) / "join.json")
        return await self._run_ray(material, arguments.head, self.settings.runtime, is_head=True)

    async def _run_host(self) -> int:
        material = read_material(Path(self.arguments.token_file))
        ports = _host_ports(split_head(self.arguments.head)[1])
        if (problem := _find_taken(self.arguments.address, ports)) is not None:
            self.say(f"Ray cannot listen on {problem}, whose number follows from the head's: end what uses it")
            return EXIT_ADDRESS
        reply = await self._ask(material)
        if reply is None:
            return 0
        if reply.runtime == "docker" and (problem := await self._find_docker_problem(reply.instance)) is not None:
            raise RefusedError(f"engines of this installation are containers, and no Docker Engine answers: {problem}")
        # From here on it is a host of the installation, and `roundhouse down` ends its engines.
        StateDir.open_folder(self.state, reply.instance).close()
        if reply.is_insecure:
            self.say("nothing is encrypted between the hosts: the head was started with --insecure-private-network")
        material = material.model_copy(update={"is_insecure": reply.is_insecure})
        arguments = self.arguments
        cluster_folder(self.state).mkdir(mode=0o700, exist_ok=True)
        write_membership(self.state, Membership(head=reply.address, name=arguments.name, address=arguments.address))
        return await self._run_ray(material, reply.address, reply.runtime, is_head=False)

    async def _ask(self, material: JoinMaterial) -> JoinReply | None:
        """Return the head's answer that lets this host in; None: the end was asked for. Raises RefusedError."""
        arguments = self.arguments
        head, port = split_head(arguments.head)
        pause_s, said = FIRST_WAIT_S, ""
        while not self.stop.is_set():
            with ExitStack() as stack:
                ports = [each for each in _host_ports(port) if _listen(stack, arguments.address, each)]
                request = make_request(
                    arguments.name, arguments.address, self.state, self.settings.runtime, ports=ports
                )
                asking = asyncio.create_task(ask_door(head, port, material.token, request))
                stopping = asyncio.create_task(self.stop.wait())
                await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if not asking.done():
                    asking.cancel()
                    return None
                try:
                    reply = asking.result()
                    refusal, is_passing = reply.refusal, reply.is_passing
                except DoorError as error:
                    refusal, is_passing = str(error), error.is_passing
                else:
                    if refusal is None:
                        return reply
            if not is_passing:
                raise RefusedError(refusal)
            if refusal != said:
                self.say(f"{refusal}; asking again until it does")
                said = refusal
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), pause_s)
            pause_s = min(MOST_WAIT_S, pause_s * 2)
        return None

    async def _find_docker_problem(self, instance: str) -> str | None:
        from controller.runtimes import open_runtime

        try:
            runtime = await open_runtime(self.settings.model_copy(update={"runtime": "docker", "hosts": ()}), instance)
        except RuntimeUnavailableError as error:
            return str(error)
        await runtime.close()
        return None

    async def _run_ray(self, material: JoinMaterial, head: str, runtime: str, *, is_head: bool) -> int:
        arguments = self.arguments
        files = sign_host(material, self.state, arguments.name, arguments.address, now=time.time())
        folder = choose_folder(self.state)
        _end_earlier_actors(folder)
        _prepare_folder(folder, is_head=is_head)
        own = {
            NAME_VARIABLE: arguments.name,
            ADDRESS_VARIABLE: arguments.address,
            LABELS_VARIABLE: ",".join(arguments.label),
            "ROUNDHOUSE_RUNTIME": runtime,
            "ROUNDHOUSE_STATE": str(self.state),
            "ROUNDHOUSE_MODELS": str(self.settings.models.absolute()),
            # The head's own engines are reached where they listen.
            "ROUNDHOUSE_HOST_RELAY_PORT": "" if is_head else str(int(head.rpartition(":")[2]) + RELAY_PORT),
        }
        environment = build_environment(
            {**os.environ, **own},
            files,
            is_insecure=material.is_insecure,
            gcs=cluster_folder(self.state) / "gcs" if is_head else None,
        )
        command = build_ray_command(
            name=arguments.name,
            address=arguments.address,
            head=head,
            is_head=is_head,
            folder=folder,
            has_engines=not arguments.no_engines,
        )
        watched = {"raylet", "gcs_server"} if is_head else {"raylet"}
        node = RayNode(command, environment, cluster_folder(self.state) / "ray.log", watched)
        try:
            words = await node.run(self.stop)
        finally:
            _end_earlier_actors(folder)
        if self.stop.is_set():
            if not is_head:  # whose tables name a session there
                remove_folder(self.state)
            return 0
        self.say(f"Ray has ended: {words}")
        return EXIT_ENDED


def split_head(head: str) -> tuple[str, int]:
    """Return address and port of `HEAD:PORT`. Raises ValueError."""
    place = split_listen_address(head)
    if isinstance(place, Path):
        raise ValueError(f"{head} is no HEAD:PORT")  # noqa: TRY004 - of what an operator wrote
    return place


def _host_ports(port: int) -> tuple[int, ...]:
    return port + NODE_PORT, port + OBJECT_PORT, port + RELAY_PORT


def _listen(stack: ExitStack, address: str, port: int) -> bool:
    """Listen until the stack ends. False: somebody does, such as the relay that was here before."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    listener = stack.enter_context(socket.socket(family))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen()
    except OSError:
        return False
    return True


def _find_taken(address: str, ports: Sequence[int]) -> str | None:
    with ExitStack() as stack:
        # The relay of an earlier run goes on.
        taken = [each for each in ports[:-1] if not _listen(stack, address, each)]
    return f"{address}:{taken[0]}" if taken else None


def _prepare_folder(folder: Path, *, is_head: bool) -> None:
    """Make the folder for Ray's sockets and logs, without what an earlier run has left. Raises OSError."""
    # Ray opens its folder to all users: the one around it keeps them out, and may be nobody else's.
    around = folder.parent
    around.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = around.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "is a link, another user's or open to others: remove it", str(around))
    if is_head:
        # Ray keeps the name of a session in its tables; this file only makes it look for another head.
        (folder / "ray_current_cluster").unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _end_earlier_actors(folder: Path) -> None:
    """Kill what an earlier Ray left of its own: an actor sees its raylet's end late, or never where nobody reaps
    processes. `folder`: that of Ray's logs, which they have open, and which one Ray at a time uses. Engines go on."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if "".join(process.cmdline()[:1]).startswith("ray::"):
                files = (str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir())
                if any(each.startswith(f"{folder}/") for each in files):
                    process.kill()


def _read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray_node")
    parser.add_argument("role", choices=["head", "join"])
    parser.add_argument("--head", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--token-file")
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--no-engines", action="store_true")
    return parser.parse_args(argv)


def main() -> int:
    """Run the program with the arguments of this process, and return its exit code."""
    stderr = LineWriter(sys.stderr)

    def say(text: str) -> None:
        stderr.write_line(f"roundhouse: {text}")

    arguments = _read_arguments(sys.argv[1:])
    os.umask(0o077)  # Ray's logs, too, are nobody else's
    try:
        return asyncio.run(_Program(arguments, say).run())
    except RefusedError as error:
        say(f"host {arguments.name} may not join: {error}")
        return EXIT_REFUSED
    except (MaterialError, StateError, SettingsError) as error:
        say(str(error))
        return EXIT_USAGE
    except OSError as error:
        say(f"{error.filename or 'a file'}: {error.strerror or error}")
        return EXIT_ENDED


if __name__ == "__main__":
    sys.exit(main())
