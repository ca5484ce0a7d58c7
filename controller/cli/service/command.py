"""`roundhouse service`: run Roundhouse as a systemd service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.exit_codes import ExitCode
from controller.cli.options import Desired, Json, Models, State
from controller.cli.output import print_error, print_json, print_line

if TYPE_CHECKING:
    from controller.cli.service.install import Change

service = typer.Typer(name="service", help="Run Roundhouse as a systemd service, with engines as processes.")

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
    """Run Roundhouse as a systemd service, with engines as processes."""


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
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address or name that the gateway listens on; several are separated by commas.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port that the gateway listens on.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Write a systemd unit that serves the models, with engines as processes.

    Without --now nothing is started, and the output says what to type next. Folders, address and PATH are taken from
    this command line; other settings go into the environment file that the output names. The state folder is made if it
    is missing. An existing unit is replaced if it differs; one of another program or another state folder is refused.
    Exit code 1: it cannot be installed, or `systemctl` fails. 64: an option is wrong.
    """
    from controller.cli.service.install import install_service

    options = {"desired": desired, "state": state, "models": models, "host": host, "port": port}
    return _tell(install_service(name, is_system=system, user=user, is_started=now, options=options), as_json)


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
    from controller.cli.service.install import remove_service

    return _tell(remove_service(name, is_system=system, is_stopped=now), as_json)


@service.command()
def run(desired: Desired = None, state: State = None, models: Models = None) -> int:
    """Serve the models until a signal to end. Engines keep running afterwards.

    The systemd unit starts this command; any other supervisor may, too. `roundhouse down` ends it and every engine.
    Exit code 0: ended by a signal. 4: another `up` or controller uses the state folder. 5: the address is taken.
    """
    import asyncio
    import os

    from controller.cli.service.run import ServiceRun
    from controller.cli.settings import read_settings
    from controller.cli.up.announce import Announcer
    from controller.cli.up.command import check_folder
    from controller.cli.up.record import lock_state
    from controller.cli.up.run import program_specs  # aiohttp and the runtimes
    from controller.cli.up.side_programs import drop_programs_without_packages

    settings = read_settings(desired=desired, state=state, models=models, runtime="process")
    check_folder(settings.desired)
    lock = lock_state(settings.state)
    try:
        announcer = Announcer(False)
        settings = drop_programs_without_packages(settings, announcer)
        return asyncio.run(ServiceRun(settings, program_specs(settings, os.environ), announcer).run())
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
