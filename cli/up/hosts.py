"""What `roundhouse head`, `join` and `leave` run: an installation of several hosts. Needs the extra `cluster`."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from cli.admin_client import AdminClient, NoControllerError
from cli.output import CommandError, ExitCode
from cli.up import supervisor
from cli.up.run import (
    RAY_NODE,
    SIDE_PROGRAMS,
    SupervisedRun,
    UpRun,
    program_socket,
    program_specs,
    stop_orphans,
)
from cli.up.service import ServiceRun
from cli.up.supervisor import Announcer, ChildSpec, FatalExit, remove_record
from common.listening import join_address
from controller.runtimes.cluster import door as doors
from controller.runtimes.cluster.host_actor import JOIN_VARIABLE, LOCK_NAME, NAME_VARIABLE
from controller.runtimes.cluster.material import (
    MATERIAL_NAME,
    HostCredentials,
    MaterialError,
    Membership,
    cluster_folder,
    ensure_material,
    read_material,
)
from controller.runtimes.cluster.ray_node import (
    EXIT_ADDRESS,
    EXIT_REFUSED,
    EXIT_USAGE,
    RefusedError,
    make_request,
    ray_version,
    remove_folder,
    sign_host,
    split_head,
)
from controller.runtimes.cluster.runtime import NO_HOST
from controller.runtimes.process.groups import send_signal
from controller.settings import ControllerSettings
from controller.state_dir import IDENTITY_NAME, StateDir, StateError, StateLockedError

ANSWER_S: Final = 5.0
"""Seconds in which the controller must answer the door."""
REMOVE_TRIES: Final = 60
"""Seconds for which the head tries to forget a host that has left."""
FILES_PORT: Final = 6
"""Port at which `transfers` gives model files to other hosts, from the number of the head's on."""
RAY_ENDS: Final = {
    EXIT_USAGE: FatalExit(ExitCode.USAGE, "a file or a setting is wrong"),
    EXIT_ADDRESS: FatalExit(ExitCode.ADDRESS_TAKEN, "its address is taken"),
    EXIT_REFUSED: FatalExit(ExitCode.FAILED, "this machine may not join"),
}
"""Exit codes of Ray's first start that end everything."""
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*=[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class HeadSetup:
    """What `serve_head` needs: the settings and the programs of a head, what its door compares hosts with, the token of
    joining, and the command that an operator types on a further machine."""

    settings: ControllerSettings
    specs: list[ChildSpec]
    facts: doors.HeadFacts
    token: str
    join_line: str


def prepare_head(
    settings: ControllerSettings, name: str, announcer: Announcer, *, has_engines: bool, is_insecure: bool
) -> HeadSetup:
    """Make what a head needs in its state folder, and return how its programs are started. Raises CommandError."""
    check_name(name)
    place = settings.hosts[0].removeprefix("ray:")
    address, port = split_head(place)
    state = settings.state.absolute()
    try:
        store = StateDir.open_folder(state, settings.instance)
        instance = store.instance
        store.close()
        material = ensure_material(state, instance, is_insecure=is_insecure, now=time.time())
        sign_host(material, state, name, address, now=time.time())
    except StateLockedError as error:
        raise CommandError(str(error), ExitCode.LOCKED) from None
    except (StateError, MaterialError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"state folder {state} cannot be used: {error.strerror or error}") from None
    settings = settings.model_copy(update={"runtime": asyncio.run(_find_runtime(settings, instance))})
    specs = program_specs(settings, {**os.environ, **share_variables(state, address, port, is_insecure=is_insecure)})
    node = ("--head", place, "--name", name, "--address", address, *(() if has_engines else ("--no-engines",)))
    specs.append(_ray_spec("head", node, {**specs[0].env, JOIN_VARIABLE: secrets.token_hex(8)}))
    facts = doors.HeadFacts(
        instance=instance,
        address=address,
        port=port,
        runtime=settings.runtime,
        ray=ray_version() or "",
        python=platform.python_version(),
        is_insecure=is_insecure,
    )
    file = cluster_folder(state) / MATERIAL_NAME
    if is_insecure:
        announcer.print_note("nothing is encrypted between the hosts (--insecure-private-network)")
    line = f"roundhouse join {place} --token-file {file.name}"
    return HeadSetup(settings, specs, facts, material.token, line)


async def serve_head(setup: HeadSetup, run: UpRun | ServiceRun, announcer: Announcer) -> int:
    """Run the programs of a head and its door, and return the exit code. Raises CommandError if the door's address is
    taken."""
    asked = ControllerRegister(setup.settings)
    register = doors.HostRegister(asked.list_hosts, asked.drain_host, asked.remove_host)
    door = doors.Door(setup.facts, setup.token, register=register, clock=time.time, say=announcer.print_note)
    try:
        server = await door.serve()
    except OSError as error:
        where = f"{setup.facts.address}:{setup.facts.port + 1}"
        message = f"cannot listen on {where}: {error.strerror or error}; choose another with --address or --port"
        raise CommandError(message, ExitCode.ADDRESS_TAKEN) from None
    file = cluster_folder(setup.settings.state.absolute()) / MATERIAL_NAME
    announcer.print_note(f"who has {file} can run programs on every host: copy it to machines that you trust with that")
    announcer.print_result(
        "head", f"To add a host, copy {file} there and run: {setup.join_line}", command=setup.join_line, file=str(file)
    )
    try:
        return await run.run()
    finally:
        server.close()


class ControllerRegister:
    """The controller of this machine, as the door asks it."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._url = settings.controller_url

    async def list_hosts(self) -> list[doors.KnownHost]:
        """Return the hosts that the controller lists; none while it has never heard one. Raises DoorError."""
        try:
            async with AdminClient(self._url, ANSWER_S) as client:
                listed = (await client.list_hosts()).hosts
        except CommandError as error:
            if NO_HOST in str(error):  # a head without engines waits for its first host
                return []
            raise doors.DoorError("the head's controller has not seen its hosts yet", is_passing=True) from None
        return [doors.KnownHost(each.name, each.address, each.state) for each in listed]

    async def drain_host(self, name: str) -> int:
        """Drain a host, and return how many engines it has left. Raises DoorError."""
        try:
            async with AdminClient(self._url, ANSWER_S) as client:
                return len((await client.drain_host(name, is_drained=True)).engines)
        except CommandError as error:
            raise doors.DoorError(str(error), is_passing=isinstance(error, NoControllerError)) from None

    async def remove_host(self, name: str) -> None:
        """Forget a host, once it no longer answers; give up after a minute."""
        for _ in range(REMOVE_TRIES):
            with suppress(CommandError):  # it still answers, or counts as if it did
                async with AdminClient(self._url, ANSWER_S) as client:
                    await client.remove_host(name)
                    return
            await asyncio.sleep(1.0)


def trust_words(token_file: Path, head: str, *, ends_engines: bool) -> tuple[str, ...]:
    """Return what an operator must know before a machine joins, as lines."""
    return (
        f"who has {token_file} can run programs on every host of the installation, and on this machine from now on",
        f"joining {head}" + ("; Ctrl-C ends this, and the engines here" if ends_engines else ""),
    )


def share_variables(state: Path, address: str, port: int, *, is_insecure: bool) -> dict[str, str]:
    """Return the variables by which a machine's `transfers` gives its model files to the other hosts. `port`: of the
    head."""
    folder, where = cluster_folder(state), join_address(address, port + FILES_PORT)
    certificates = {} if is_insecure else {"ROUNDHOUSE_TRANSFERS_SHARE_CERTIFICATES": str(folder)}
    token = {"ROUNDHOUSE_TRANSFERS_SHARE_TOKEN_FILE": str(HostCredentials.in_state(state).token)}
    return {"ROUNDHOUSE_TRANSFERS_SHARE_LISTEN": where, **token, **certificates}


def plan_join(
    settings: ControllerSettings,
    head: str,
    token_file: Path,
    name: str | None,
    address: str | None,
    labels: Sequence[str],
    environ: Mapping[str, str],
) -> list[ChildSpec]:
    """Check what an operator gave, and return how to start the programs of a host: the one that joins, and `transfers`
    unless downloads are off. Raises CommandError."""
    try:
        head_host, port = split_head(head)
    except ValueError:
        raise CommandError(f"{head} is no HEAD:PORT, as `roundhouse head` prints it", ExitCode.USAGE) from None
    try:
        material = read_material(token_file)
    except MaterialError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    for each in labels:
        if _LABEL.fullmatch(each) is None:
            raise CommandError(f"--label {each}: a label is KEY=VALUE, of letters, digits, ., _ and -", ExitCode.USAGE)
    own_name = name or default_name()
    check_name(own_name)
    own_address = check_address(address) if address is not None else find_address(head_host)
    arguments = ["--head", head, "--name", own_name, "--address", own_address]
    arguments += ["--token-file", str(token_file.absolute())]
    arguments += [part for each in labels for part in ("--label", each)]
    env = {
        **{key: value for key, value in environ.items() if key != "ROUNDHOUSE_HOSTS"},
        JOIN_VARIABLE: secrets.token_hex(8),
        "ROUNDHOUSE_STATE": str(settings.state),
        "ROUNDHOUSE_MODELS": str(settings.models),
        "ROUNDHOUSE_RUNTIME": settings.runtime,
    }
    files = next(each for each in SIDE_PROGRAMS if each.name == "transfers")
    if not files.is_wanted(settings) or any(find_spec(name) is None for name in files.packages):
        return [_ray_spec("join", arguments, env)]
    listen = f"unix:{program_socket(settings, files.name).absolute()}"
    env |= {"ROUNDHOUSE_TRANSFERS_LISTEN": listen, "ROUNDHOUSE_TRANSFERS_URL": listen}
    shares = share_variables(settings.state.absolute(), own_address, port, is_insecure=material.is_insecure)
    command = (sys.executable, "-P", "-m", files.name)
    variables = files.variables(settings, env | shares)
    return [_ray_spec("join", arguments, env), ChildSpec(files.name, command, variables, dies_alone=True)]


def run_service(settings: ControllerSettings, announcer: Announcer, passed: Sequence[int]) -> int:
    """Run a head under a supervisor, as `service run` does where the settings name Ray, and return the exit code."""
    is_insecure = False
    with suppress(MaterialError):  # it is made now
        is_insecure = read_material(cluster_folder(settings.state) / MATERIAL_NAME).is_insecure
    name = os.environ.get(NAME_VARIABLE) or default_name()
    setup = prepare_head(settings, name, announcer, has_engines=True, is_insecure=is_insecure)
    return asyncio.run(serve_head(setup, ServiceRun(setup.settings, setup.specs, announcer, passed), announcer))


def _ray_spec(role: str, arguments: Sequence[str], env: Mapping[str, str]) -> ChildSpec:
    command = (sys.executable, "-P", "-m", "controller.runtimes.cluster.ray_node", role, *arguments)
    return ChildSpec(RAY_NODE, command, env, RAY_ENDS)


async def end_earlier(state: Path) -> None:
    """End what a run of `join` that was killed has left, but for the engines."""
    for record in (each for name in (RAY_NODE, "transfers") for each in supervisor.find_children(state, name)):
        send_signal(record.process, signal.SIGTERM)
        if not await supervisor.wait_until_gone(record, supervisor.RAY_ENDS_S):
            send_signal(record.process, signal.SIGKILL)
            await supervisor.wait_until_gone(record, supervisor.KILLED_S)


class JoinRun(SupervisedRun):
    """Supervises the programs that make this machine a host: Ray's node, and `transfers`. Use one object for one run of
    `roundhouse join`. The caller holds the lock of the state folder until `run` has returned."""

    def __init__(
        self, settings: ControllerSettings, specs: Sequence[ChildSpec], announcer: Announcer, *, ends_engines: bool
    ) -> None:
        super().__init__(settings, specs, announcer)
        self._ends_engines = ends_engines

    async def run(self) -> ExitCode:
        """Run until a signal, or until the head refuses this machine at first, and return the exit code. Then end the
        programs and, after a signal and with `ends_engines`, the engines. Call it once, in the main thread: it takes
        over the signal handlers. Raises OSError where the record cannot be removed at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop_event.set)
        await end_earlier(self._settings.state)
        ending = await self._supervisor.run(self._stop_event)
        for child in self._supervisor.children.values():
            child.send_signal(signal.SIGTERM)
        await asyncio.gather(
            *(self._wait_or_kill(child, supervisor.RAY_ENDS_S) for child in self._supervisor.children.values())
        )
        await self._supervisor.wait_until_ended()
        code = ending.exit
        # A refusal ends no engines that an earlier run has left serving.
        if self._ends_engines and (code == ExitCode.DONE or not (self._settings.state / IDENTITY_NAME).exists()):
            code = await self._end_engines() or code
        else:
            self._announcer.print_note("stopped; engines go on, and `roundhouse down` ends them")
        remove_record(self._settings.state)
        return code

    async def _end_engines(self) -> ExitCode:
        grace_s = min(self._settings.stop_timeout_s, supervisor.UP_ENGINES_S)
        try:
            names = await stop_orphans(self._settings, grace_s=grace_s, lock_wait_s=supervisor.FORCED_S)
        except CommandError as error:
            self._announcer.print_note(f"engines may still run ({error}): `roundhouse down` stops them")
            return ExitCode.FAILED
        self._announcer.print_note(f"stopped {', '.join(names)}" if names else "stopped")
        return ExitCode.DONE


class LeaveRun:
    """Takes this machine out of an installation. Use one object for one run of `roundhouse leave`."""

    def __init__(self, settings: ControllerSettings, membership: Membership, say: Callable[[str], None]) -> None:
        """`membership`: which head it joined, under which name. `say` takes a line for the operator."""
        self._settings = settings
        self._membership = membership
        self._state = settings.state.absolute()
        self._say = say

    async def run(self, timeout_s: float, *, is_drained: bool) -> ExitCode:
        """With `is_drained` drain this host first, for `timeout_s` seconds at most. Then end `join` and the engines
        here, tell the head, and remove what made this machine a host. Return PENDING if engines are left at the
        timeout: it is still a host then. Raises CommandError."""
        name = self._membership.name
        if is_drained and (left := await self._drain(timeout_s)):
            self._say(f"{left} engines are left on host {name}, which goes on draining; --no-drain ends them")
            return ExitCode.PENDING
        await self._end_join()
        await stop_orphans(self._settings, grace_s=self._settings.stop_timeout_s, lock_wait_s=supervisor.FORCED_S)
        try:
            await self._ask("left")
        except doors.DoorError as error:
            self._say(f"{error}: `roundhouse hosts forget {name}` on the head takes it out of the list")
        remove_folder(self._state)
        shutil.rmtree(cluster_folder(self._state), ignore_errors=True)
        for each in (IDENTITY_NAME, LOCK_NAME):
            (self._state / each).unlink(missing_ok=True)
        return ExitCode.DONE

    async def _ask(self, intent: Literal["drain", "left"]) -> doors.JoinReply:
        """Raises DoorError, also for what the head refuses."""
        member = self._membership
        host, port = split_head(member.head)
        try:
            token = HostCredentials.in_state(self._state).token.read_text()
            request = make_request(member.name, member.address, self._state, self._settings.runtime, intent=intent)
        except (OSError, RefusedError) as error:
            raise doors.DoorError(f"what made this machine a host cannot be read: {error}", is_passing=False) from None
        reply = await doors.ask_door(host, port, token, request)
        if reply.refusal is not None:
            raise doors.DoorError(reply.refusal, is_passing=reply.is_passing)
        return reply

    async def _drain(self, timeout_s: float) -> int:
        """Return the number of engines that are left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        said = None
        while True:
            try:
                left = (await self._ask("drain")).engines_left
            except doors.DoorError as error:
                raise CommandError(f"this host cannot be drained: {error}; --no-drain leaves without that") from None
            if left and left != said:
                self._say(f"draining: {left} engines are left")
                said = left
            if not left or loop.time() >= until:
                return left
            await asyncio.sleep(1.0)

    async def _end_join(self) -> None:
        if (up := supervisor.find_up(self._state)) is not None:
            send_signal(up.process, signal.SIGTERM)
            if not await supervisor.wait_until_gone(up, supervisor.UP_ENDS_S):
                raise CommandError(f"`roundhouse join` (process {up.pid}) does not end: end it, and leave again")
        await end_earlier(self._state)


def default_name() -> str:
    """Return the name of this machine as one of a host."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-") or "host"


def check_name(name: str) -> None:
    """Raise CommandError unless a host may have this name."""
    if doors.HOST_NAME.fullmatch(name) is None:
        raise CommandError(f"--name {name}: lower case letters, digits, dots and dashes name a host", ExitCode.USAGE)


def check_address(address: str) -> str:
    """Return an address of this machine as it was given. Raises CommandError."""
    try:
        parsed = ip_address(address)
    except ValueError:
        raise CommandError(f"--address {address} is no IP address", ExitCode.USAGE) from None
    if parsed.is_loopback or parsed.is_unspecified:
        raise CommandError(f"--address {address}: no other machine reaches this one there", ExitCode.USAGE)
    try:
        with socket.socket(socket.AF_INET6 if parsed.version == 6 else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        raise CommandError(f"--address {address} is no address of this machine", ExitCode.USAGE) from None
    return address


def find_address(towards: str) -> str:
    """Return this machine's address on the way to another. Nothing is sent. Raises CommandError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            found = str(probe.getsockname()[0])
    except OSError as error:
        message = f"no way leads to {towards} ({error.strerror or error}): --address names this machine's address"
        raise CommandError(message) from None
    if ip_address(found).is_loopback:
        raise CommandError(f"{towards} is this machine itself, where the head runs: join from another", ExitCode.USAGE)
    return found


async def _find_runtime(settings: ControllerSettings, instance: str) -> str:
    """Return the kind of runtime of all hosts: as the settings say, else what this machine has. Raises CommandError."""
    if settings.runtime != "auto":
        return settings.runtime
    from controller.runtimes import open_runtime

    runtime = await open_runtime(settings.model_copy(update={"hosts": ()}), instance)
    await runtime.close()
    return "docker" if runtime.kind == "docker" else "process"
