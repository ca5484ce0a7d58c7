"""`roundhouse up`, `roundhouse down` and `roundhouse service`: everything on this host is started and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from cli.options import ControllerUrl, Desired, Json, Models, Runtime, State, Timeout, read_settings
from cli.output import CommandError, ExitCode, print_error, print_json, print_line
from common.listening import LISTENER, take_passed_files

if TYPE_CHECKING:
    from cli.admin_client import AdminClient
    from cli.up.service import Change
    from cli.up.supervisor import Announcer, ProcessRecord
    from controller.artifacts.model_roots import ModelRoots
    from controller.settings import ControllerSettings


Host: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address or name that the gateway listens on; several are separated by commas.",
    ),
]


def up(
    desired: Desired = None,
    state: State = None,
    models: Models = None,
    runtime: Runtime = None,
    host: Host = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port that the gateway listens on; 0: any free port."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Serve the models, in the foreground.

    Starts the controller, the gateway and, where their packages are installed, retrieval and transfers, and keeps them
    running. When the first model is ready, prints a request to try. Ctrl-C ends them and every engine; a second Ctrl-C
    does not wait for running requests. Exit code 0: ended by Ctrl-C or a signal, and nothing is left running. 1:
    engines may still run, or the runtime does not answer. 4: the state folder is in use. 5: the address is taken. Every
    option is also a setting (docs/settings.md), in the environment as ROUNDHOUSE_DESIRED and so on.
    """
    options = {"desired": desired, "state": state, "models": models, "runtime": runtime, "host": host, "port": port}
    settings = read_settings(**options)
    check_folder(settings.desired)
    check_models(settings.models)

    from cli.up.run import (  # aiohttp and the runtimes
        UpRun,
        drop_programs_without_packages,
        lock_and_check,
        program_specs,
    )
    from cli.up.supervisor import Announcer, listen_at

    lock = lock_and_check(settings.state)
    try:
        listeners = listen_at(settings.gateway_hosts, settings.port)
        settings = settings.model_copy(update={"port": listeners[0].getsockname()[1]})
        announcer = Announcer(as_json)
        settings = drop_programs_without_packages(settings, announcer)
        run = UpRun(settings, program_specs(settings, os.environ), announcer)
        run.hold_listeners(listeners)
        return asyncio.run(run.run())
    finally:
        os.close(lock)


HEAD_PORT = 8093
"""Port of Ray's head by default. The others follow it (docs/cluster.md)."""
HostName = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of this host; default: the machine's name.")
]
HostAddress = Annotated[
    str | None,
    typer.Option("--address", metavar="IP", help="Address at which the other machines reach this one; default: found."),
]


Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Label that `hosts` of a model may name; may be repeated."),
]
JoinName = Annotated[str | None, typer.Option("--host-name", metavar="NAME", help="With --join: name of this host.")]
Join = Annotated[
    str | None, typer.Option("--join", metavar="HEAD:PORT", help="Be a host of the installation of this head.")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="With --join: the head's `join.json`, copied here.")
]


def head(
    desired: Desired = None,
    state: State = None,
    models: Models = None,
    runtime: Runtime = None,
    host: Host = None,
    gateway_port: Annotated[
        int | None,
        typer.Option("--gateway-port", metavar="PORT", min=0, max=65535, help="Port that the gateway listens on."),
    ] = None,
    name: HostName = None,
    address: HostAddress = None,
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", min=1024, max=64000, help="Port of Ray's head; the others follow it."),
    ] = HEAD_PORT,
    no_engines: Annotated[bool, typer.Option("--no-engines", help="Run no engines on this machine.")] = False,
    insecure_private_network: Annotated[
        bool,
        typer.Option(
            "--insecure-private-network",
            help="Encrypt nothing between the hosts: for a network that nobody else is on.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Serve as `up` does, here and on every host that joins.

    Prints the command with which another machine joins. The file that it names lets whoever has it run programs on
    every host. Ctrl-C ends everything, also the engines on other hosts. Exit codes: those of `up`.
    """
    require_ray()
    from cli.up.hosts import check_address, default_name, find_address, prepare_head, serve_head
    from cli.up.run import UpRun, drop_programs_without_packages, lock_and_check
    from cli.up.supervisor import Announcer, listen_at
    from common.listening import join_address

    options = {"desired": desired, "state": state, "models": models, "runtime": runtime, "host": host}
    own_address = check_address(address) if address is not None else find_address("192.0.2.1")
    hosts = f"ray:{join_address(own_address, port)}"
    settings = read_settings(**options, port=gateway_port, hosts=hosts)
    check_folder(settings.desired)
    check_models(settings.models)
    lock = lock_and_check(settings.state)
    try:
        listeners = listen_at(settings.gateway_hosts, settings.port)
        settings = settings.model_copy(update={"port": listeners[0].getsockname()[1]})
        announcer = Announcer(as_json)
        settings = drop_programs_without_packages(settings, announcer)
        setup = prepare_head(
            settings,
            name or default_name(),
            announcer,
            has_engines=not no_engines,
            is_insecure=insecure_private_network,
        )
        run = UpRun(setup.settings, setup.specs, announcer)
        run.hold_listeners(listeners)
        return asyncio.run(serve_head(setup, run, announcer))
    finally:
        os.close(lock)


def join(
    head: Annotated[str, typer.Argument(metavar="HEAD:PORT", help="Address of the head, as it prints it.")],
    token_file: Annotated[
        Path, typer.Option("--token-file", metavar="FILE", help="The head's `join.json`, copied to this machine.")
    ],
    name: HostName = None,
    address: HostAddress = None,
    label: Labels = None,
    state: State = None,
    models: Models = None,
    runtime: Runtime = None,
) -> int:
    """Make this machine a host, in the foreground.

    Who has the token file can run programs on every host. Joins again whenever the connection or the head is lost, for
    ever. Ctrl-C ends it and the engines here. Exit code 0: ended by Ctrl-C or a signal. 1: the head refuses this
    machine. 4: the state folder is in use. 64: an option or the token file is wrong.
    """
    from cli.up.supervisor import Announcer

    settings = read_settings(state=state, models=models, runtime=runtime)
    return _serve_host(settings, head, token_file, name, address, label or [], Announcer(False), ends_engines=True)


def _serve_host(
    settings: ControllerSettings,
    head: str,
    token_file: Path,
    name: str | None,
    address: str | None,
    labels: Sequence[str],
    announcer: Announcer,
    *,
    ends_engines: bool = False,
) -> int:
    require_ray()
    from cli.up.hosts import JoinRun, plan_join, trust_words
    from cli.up.supervisor import lock_state

    specs = plan_join(settings, head, token_file, name, address, labels, os.environ)
    check_models(settings.models)
    for line in trust_words(token_file, head, ends_engines=ends_engines):
        announcer.print_note(line)
    lock = lock_state(settings.state)
    try:
        return asyncio.run(JoinRun(settings, specs, announcer, ends_engines=ends_engines).run())
    finally:
        os.close(lock)


def leave(
    state: State = None,
    runtime: Runtime = None,
    no_drain: Annotated[
        bool, typer.Option("--no-drain", help="End the engines here at once, with the requests in them.")
    ] = False,
    timeout: Timeout = 600.0,
) -> int:
    """Take this machine out of the installation that it has joined.

    Drains it, ends `join` and the engines here, has the head forget it, and removes its token and certificate. Exit
    code 0: it is no host any more. 1: it is none, or the head cannot be asked to drain it. 2: engines are left after
    --timeout, and it is still a host.
    """
    require_ray()
    from cli.up.hosts import LeaveRun
    from controller.runtimes.cluster.material import read_membership

    settings = read_settings(state=state, runtime=runtime)
    if (membership := read_membership(settings.state)) is None:
        raise CommandError(f"nothing has joined with the state folder {settings.state}; --state names it")
    code = asyncio.run(LeaveRun(settings, membership, print_error).run(timeout, is_drained=not no_drain))
    if code is ExitCode.DONE:
        print_line(f"host {membership.name} has left {membership.head}")
    return code


def require_ray() -> None:
    """Raise CommandError unless Ray and what else several hosts need is installed."""
    if any(find_spec(each) is None for each in ("ray", "cryptography")):
        raise CommandError(
            "several hosts need Ray: `pip install 'roundhouse[cluster]'`, or in a clone `.venv/bin/pip install "
            "--require-hashes -r requirements/cluster.txt`"
        )


def check_folder(desired: Path) -> None:
    """Raise CommandError (ExitCode.USAGE) unless the folder of the desired-state files exists: its path may be
    mistyped."""
    if not desired.is_dir():
        hint = "--desired or ROUNDHOUSE_DESIRED names the folder of the desired-state files"
        raise CommandError(f"there is no folder {desired}; {hint}", ExitCode.USAGE)


def check_models(roots: ModelRoots) -> None:
    """Raise CommandError (ExitCode.USAGE) unless the first folder of model files exists: its path may be mistyped. The
    folder `models`, which nobody has named, need not exist; downloads make it. Print a line for each further folder
    that does not exist."""
    for place, named in enumerate(roots.folders):
        folder = Path(os.path.expanduser(named))  # noqa: PTH111 - Path's own raises where there is no home
        if folder.is_dir() or folder == DEFAULT_MODELS:
            continue
        if place == 0:
            hint = "--models or ROUNDHOUSE_MODELS names the folders of model files"
            raise CommandError(f"there is no folder {folder}; {hint}", ExitCode.USAGE)
        print_error(f"there is no folder {folder}: the models in it cannot start until there is")


DEFAULT_MODELS = Path("models")
"""Folder of model files by default."""
POLL_S = 0.1
"""Seconds between two checks whether a process has ended."""


def down(
    controller: ControllerUrl = None,
    state: State = None,
    models: Models = None,
    runtime: Runtime = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            max=3600,
            metavar="SECONDS",
            help="Time that `up`, and then each program that is left, has to end before it is killed; default: "
            "derived from the settings (docs/cli.md).",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Stop everything, engines included.

    Ends `up`, controller, gateway, retrieval, transfers and every engine of this installation, also those that a crash
    or `docker compose down` left behind. A program that does not end in time is killed, and everything that it would
    have ended is ended afterwards. Exit code 0: nothing is left running, also when nothing ran. 1: something could not
    be ended. 4: another controller keeps the state folder locked.
    """
    settings = read_settings(state=state, models=models, runtime=runtime)
    stopped_programs = asyncio.run(_DownRun(settings, controller or settings.controller_url, timeout).run())
    if as_json:
        killed_programs = [name for name, killed_after_s in stopped_programs.items() if killed_after_s is not None]
        print_json({"stopped": list(stopped_programs), "killed": killed_programs})
    elif stopped_programs:
        for name, killed_after_s in stopped_programs.items():
            print_line(stop_words(name, killed_after_s))
    else:
        print_line("nothing was running")
    return ExitCode.DONE


def stop_words(name: str, killed_after_s: float | None) -> str:
    """Return a line that says how the program `name` ended. `killed_after_s` is the seconds until it was killed; None
    means that it ended when it was asked to."""
    if killed_after_s is None:
        return f"stopped {name}"
    return f"killed {name}, which did not end within {killed_after_s:g} s"


class _DownRun:
    """One run of `down`. Every step does nothing when there is nothing to do."""

    def __init__(self, settings: ControllerSettings, url: str, timeout_s: float | None) -> None:
        """`timeout_s` is the time that each program gets to end; None takes it from the settings."""
        from cli.up import supervisor

        self._settings = settings
        self._url = url
        self._up_s = supervisor.up_stop_timeout_s() if timeout_s is None else timeout_s
        self._gateway_s = supervisor.gateway_stop_timeout_s() if timeout_s is None else timeout_s
        self._side_program_s = supervisor.MARGIN_S if timeout_s is None else timeout_s
        self._controller_s = supervisor.controller_stop_timeout_s(settings) if timeout_s is None else timeout_s
        self._ray_s = supervisor.RAY_ENDS_S if timeout_s is None else timeout_s
        self._stopped_programs: dict[str, float | None] = {}

    async def run(self) -> Mapping[str, float | None]:
        """End everything. Returns what was stopped, in words, each with the seconds until it was killed (None: it ended
        by itself).

        Raises CommandError where something cannot be ended.
        """
        from cli.up import supervisor
        from cli.up.run import PROGRAMS_IN_END_ORDER, RAY_NODE, SIDE_PROGRAMS, stop_orphans
        from cli.up.supervisor import find_children, find_up, remove_record

        settings = self._settings
        if (up := find_up(settings.state)) is not None:
            # It stops its children in the right order, and their engines.
            children = {
                _process_words(name, child): child
                for name in PROGRAMS_IN_END_ORDER
                for child in find_children(settings.state, name)
            }
            order = ", ".join([*children, "the engines"])
            await self._end(
                "roundhouse up", up, self._up_s, f"lets running requests finish, then ends {order}", children
            )
        for gateway in find_children(settings.state, "gateway"):
            # Before the engines: its running requests need them.
            await self._end("gateway", gateway, self._gateway_s, "lets running requests finish")
        for program in SIDE_PROGRAMS:
            for child in find_children(settings.state, program.name):
                await self._end(program.name, child, self._side_program_s, "ends")
        await self._end_controllers(find_children(settings.state, "controller"))
        for node in find_children(settings.state, RAY_NODE):
            await self._end(RAY_NODE, node, self._ray_s, "ends")
        lock_wait_s = supervisor.controller_stop_timeout_s(settings)
        engines = await stop_orphans(settings, grace_s=settings.stop_timeout_s, lock_wait_s=lock_wait_s)
        self._stopped_programs |= {f"engine {name}": None for name in engines}
        remove_record(settings.state)
        return self._stopped_programs

    async def _end_controllers(self, controllers: Sequence[ProcessRecord]) -> None:
        """End the controller that answers, and `controllers`, which an `up` started. Usually they are the same.

        Raises CommandError.
        """
        from cli.admin_client import AdminClient, NoControllerError

        waited_for = ", ".join(_process_words("controller", each) for each in controllers)
        waited_for = waited_for or f"the controller at {self._url}"
        is_asked = is_silent = False
        async with AdminClient(self._url) as client:
            with suppress(NoControllerError):
                await client.shut_down(stop_engines=True)
                is_asked = True
                print_error(
                    f"waiting for {waited_for}: it stops the engines; {self._controller_s:g} s at most (--timeout)"
                )
                is_silent = await self._wait_until_silent(client)
        if is_asked and not controllers:
            if not is_silent:
                waited = f"was asked to end and still runs after {self._controller_s:g} s"
                raise CommandError(f"{waited_for} {waited}; no `up` here started it, so it is not killed")
            self._stopped_programs["controller and its engines"] = None
        for controller in controllers:
            if is_asked and not is_silent:
                await self._kill(_process_words("controller", controller), controller, self._controller_s)
            else:
                await self._end("controller", controller, self._controller_s, "ends", is_told=is_asked)

    async def _wait_until_silent(self, client: AdminClient) -> bool:
        """Wait until the controller stops answering. Returns whether it did in time. It may still run: its lock tells
        when it has ended."""
        from cli.admin_client import NoControllerError

        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._controller_s
        while loop.time() < deadline:
            try:
                await client.get_status()
            except NoControllerError:
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def _end(
        self,
        name: str,
        record: ProcessRecord,
        within_s: float,
        work: str,
        children: Mapping[str, ProcessRecord] | None = None,
        *,
        is_told: bool = False,
    ) -> None:
        """End a process: SIGTERM unless `is_told`, then SIGKILL after `within_s` seconds. Raises CommandError.

        `work` says what the process does meanwhile. A line is printed for each of `children` that ends meanwhile.
        """
        process_words = _process_words(name, record)
        if not is_told:
            if not record.is_alive():
                return
            print_error(f"waiting for {process_words}: it {work}; it is killed after {within_s:g} s (--timeout)")
            _send_signal(process_words, record, signal.SIGTERM)
        from cli.up.supervisor import wait_until_gone

        if await wait_until_gone(record, within_s, children or {}):
            self._stopped_programs[process_words] = None
        else:
            await self._kill(process_words, record, within_s)

    async def _kill(self, process_words: str, record: ProcessRecord, waited_s: float) -> None:
        if not record.is_alive():
            return
        print_error(f"{process_words} did not end within {waited_s:g} s: it is killed, and what it leaves is ended")
        _send_signal(process_words, record, signal.SIGKILL)
        from cli.up.supervisor import KILLED_S, wait_until_gone

        if not await wait_until_gone(record, KILLED_S):
            raise CommandError(
                f"{process_words} was killed and is still there: the system holds it, most likely for a device or a "
                "file system that does not answer"
            )
        self._stopped_programs[process_words] = waited_s


def _process_words(name: str, record: ProcessRecord) -> str:
    return f"{name} (process {record.pid})"


def _send_signal(process_words: str, record: ProcessRecord, number: signal.Signals) -> None:
    """Send a signal. Raises CommandError where the process belongs to another user."""
    from controller.runtimes.process.groups import send_signal

    try:
        send_signal(record.process, number)
    except PermissionError:
        raise CommandError(f"{process_words} is another user's: run `roundhouse down` as that user") from None


service = typer.Typer(name="service", help="Run Roundhouse as a systemd service.")

System = Annotated[
    bool,
    typer.Option(
        "--system", help="Install or remove a service of the machine instead of a service of this user. Needs root."
    ),
]
Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the unit, for a second installation on one machine.")
]


@service.callback()
def _group() -> None:
    """Run Roundhouse as a systemd service."""


@service.command()
def install(
    system: System = False,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="User that the service runs as, with --system. Must not be root."),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Also enable and start the service, or restart it if its unit changed.")
    ] = False,
    name: Name = "roundhouse",
    desired: Desired = None,
    state: State = None,
    models: Models = None,
    host: Host = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port that the gateway listens on.")
    ] = None,
    join: Join = None,
    token_file: TokenFile = None,
    host_name: JoinName = None,
    address: HostAddress = None,
    label: Labels = None,
    as_json: Json = False,
) -> int:
    """Write a systemd unit that serves the models, with engines as processes.

    With --join the unit makes this machine a host of the installation of that head (docs/cluster.md); --token-file,
    --host-name, --address and --label are those of `roundhouse join`.

    Without --now nothing is started, and the output says what to type next. Folders, address and PATH are taken from
    this command line; other settings go into the environment file that the output names. The state folder is made if it
    is missing. An existing unit is replaced if it differs; one of another program or another state folder is refused.
    Exit code 1: it cannot be installed, or `systemctl` fails. 64: an option is wrong.
    """
    from cli.up.service import install_service

    options = {"desired": desired, "state": state, "models": models, "host": host, "port": port}
    arguments: tuple[str, ...] = ()
    if join is not None:
        require_ray()
        from cli.up.hosts import plan_join

        settings = read_settings(state=state, models=models, runtime="process")
        plan_join(settings, join, _need_token(token_file), host_name, address, label or [], os.environ)
        arguments = ("--join", join, "--token-file", str(_need_token(token_file).absolute()))
        arguments += ("--host-name", host_name) if host_name is not None else ()
        arguments += ("--address", address) if address is not None else ()
        arguments += tuple(part for each in label or () for part in ("--label", each))
    change = install_service(name, is_system=system, user=user, is_started=now, options=options, join=arguments)
    return _tell(change, as_json)


def _need_token(token_file: Path | None) -> Path:
    if token_file is None:
        raise CommandError("--join needs --token-file: the head's `join.json`, copied to this machine", ExitCode.USAGE)
    return token_file


@service.command()
def remove(
    system: System = False,
    now: Annotated[
        bool, typer.Option("--now", help="Stop a running service first. Its engines run on until `roundhouse down`.")
    ] = False,
    name: Name = "roundhouse",
    as_json: Json = False,
) -> int:
    """Remove the systemd unit; a missing one is no error. Models, state and desired state stay, and engines run on.
    Refuses, with exit code 1, while the service runs, unless --now, and for a unit that `roundhouse service install`
    did not write."""
    from cli.up.service import remove_service

    return _tell(remove_service(name, is_system=system, is_stopped=now), as_json)


@service.command()
def run(
    desired: Desired = None,
    state: State = None,
    models: Models = None,
    join: Join = None,
    token_file: TokenFile = None,
    host_name: JoinName = None,
    address: HostAddress = None,
    label: Labels = None,
) -> int:
    """Serve the models until a signal to end. Engines keep running afterwards.

    With --join this machine is a host of that head's installation, as with `roundhouse join`. With
    ROUNDHOUSE_HOSTS=ray:ADDRESS:PORT it is a head, as with `roundhouse head`.

    The systemd unit starts this command; any other supervisor may, too. `roundhouse down` ends it and every engine.
    Exit code 0: ended by a signal. 4: another `up` or controller uses the state folder. 5: the address is taken.
    """
    from cli.up.run import drop_programs_without_packages, program_specs
    from cli.up.service import ServiceRun
    from cli.up.supervisor import Announcer, lock_state

    announcer = Announcer(False)
    if join is not None:
        settings = read_settings(state=state, models=models)
        return _serve_host(settings, join, _need_token(token_file), host_name, address, label or [], announcer)
    settings = read_settings(desired=desired, state=state, models=models, runtime="process")
    check_folder(settings.desired)
    lock = lock_state(settings.state)
    try:
        settings = drop_programs_without_packages(settings, announcer)
        passed = take_passed_files(os.environ).get(LISTENER, ())
        if settings.is_ray:
            require_ray()
            from cli.up.hosts import run_service

            return run_service(settings, announcer, passed)
        return asyncio.run(ServiceRun(settings, program_specs(settings, os.environ), announcer, passed).run())
    finally:
        os.close(lock)


def _tell(change: Change, as_json: bool) -> int:
    if as_json:
        value: dict[str, Any] = {"unit": str(change.path), "done": change.done, "next": change.next_lines}
        print_json(value | {"notes": change.notes})
        return ExitCode.DONE
    for line in change.done:
        print_line(line)
    for note in change.notes:
        print_error(note)
    for line in change.next_lines:
        print_line(f"next: {line}")
    return ExitCode.DONE
