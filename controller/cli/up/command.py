"""`roundhouse up`: run the controller and the gateway."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Desired, Json, Models, Runtime, State
from controller.cli.settings import read_settings


def up(
    desired: Desired = None,
    state: State = None,
    models: Models = None,
    runtime: Runtime = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address or name that the gateway listens on; several are separated by commas.",
        ),
    ] = None,
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

    from controller.cli.up.announce import Announcer
    from controller.cli.up.port_check import check_port_free
    from controller.cli.up.run import (  # aiohttp and the runtimes
        UpRun,
        lock_and_check,
        program_specs,
    )
    from controller.cli.up.side_programs import drop_programs_without_packages

    lock = lock_and_check(settings.state)
    try:
        settings = settings.model_copy(update={"port": check_port_free(settings.hosts, settings.port)})
        announcer = Announcer(as_json)
        settings = drop_programs_without_packages(settings, announcer)
        run = UpRun(settings, program_specs(settings, os.environ), announcer)
        return asyncio.run(run.run())
    finally:
        os.close(lock)


def check_folder(desired: Path) -> None:
    """Raise CommandError (ExitCode.USAGE) unless the folder of the desired-state files exists: its path may be
    mistyped."""
    if not desired.is_dir():
        hint = "--desired or ROUNDHOUSE_DESIRED names the folder of the desired-state files"
        raise CommandError(f"there is no folder {desired}; {hint}", ExitCode.USAGE)
