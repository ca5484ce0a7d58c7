"""`roundhouse down`."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from controller.cli import stop_timeouts
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import ControllerUrl, Json, Models, Runtime, State
from controller.cli.output import print_json, print_line
from controller.cli.settings import read_settings

if TYPE_CHECKING:
    from controller.cli.client import ControllerClient
    from controller.cli.up.record import ProcessRecord
    from controller.settings import ControllerSettings

POLL_S = 0.1


def down(
    controller: ControllerUrl = None,
    state: State = None,
    models: Models = None,
    runtime: Runtime = None,
    as_json: Json = False,
) -> int:
    """Stop everything, engines included.

    Ends `up`, controller, gateway and every engine of this installation, also what a crash or `docker compose down`
    left. Exit code 0 when nothing is left, also when nothing was there.
    """
    settings = read_settings(state=state, models=models, runtime=runtime)
    stopped_programs = asyncio.run(_DownRun(settings, controller or settings.controller_url).run())
    if as_json:
        print_json({"stopped": stopped_programs})
    elif stopped_programs:
        for each in stopped_programs:
            print_line(f"stopped {each}")
    else:
        print_line("nothing was running")
    return ExitCode.DONE


class _DownRun:
    """One run of `down`. Every step does nothing when there is nothing to do."""

    def __init__(self, settings: ControllerSettings, url: str) -> None:
        self._settings = settings
        self._url = url
        self._stopped_programs: list[str] = []

    async def run(self) -> list[str]:
        """What was stopped, in words."""
        from controller.cli.orphans import stop_orphans  # imports the controller's runtimes
        from controller.cli.up.marks import find_children, find_up
        from controller.cli.up.record import remove_record

        settings = self._settings
        controller_s = stop_timeouts.controller_stop_timeout_s(settings)
        if (up := find_up(settings.state)) is not None:
            # It stops its children in the right order, and their engines.
            await self._end("roundhouse up", up, stop_timeouts.up_stop_timeout_s(settings), kill=False)
        for gateway in find_children(settings.state, "gateway"):
            # Before the engines: its running requests need them.
            await self._end("gateway", gateway, stop_timeouts.gateway_stop_timeout_s())
        controllers = find_children(settings.state, "controller")
        is_asked = await self._ask_controller()
        for controller in controllers:
            await self._end("controller", controller, controller_s, tell=not is_asked)
        engines = await stop_orphans(settings, grace_s=settings.stop_timeout_s, lock_wait_s=controller_s)
        self._stopped_programs += (f"engine {name}" for name in engines)
        remove_record(settings.state)
        return self._stopped_programs

    async def _ask_controller(self) -> bool:
        """Whether there was one to ask. Returns when it answers no more; that it has ended, its lock tells."""
        from controller.cli.client import ControllerClient, NoControllerError

        async with ControllerClient(self._url) as client:
            try:
                await client.shut_down(stop_engines=True)
            except NoControllerError:
                return False
            self._stopped_programs.append("controller and its engines")
            with suppress(NoControllerError):
                await self._until_gone(client)
        return True

    async def _until_gone(self, client: ControllerClient) -> None:
        """Ask until NoControllerError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + stop_timeouts.controller_stop_timeout_s(self._settings)
        while loop.time() < deadline:
            await client.get_status()
            await asyncio.sleep(POLL_S)
        raise CommandError(f"the controller at {self._url} was asked to end and still runs")

    async def _end(
        self, name: str, record: ProcessRecord, within_s: float, *, tell: bool = True, kill: bool = True
    ) -> None:
        """End a process: SIGTERM if it is to be told, and SIGKILL, if it may be, when that does not help."""
        from controller.runtimes.process.groups import send_signal

        if not record.is_alive():
            return
        if tell:
            send_signal(record.process, signal.SIGTERM)
        if not await _wait_until_gone(record, within_s):
            if not kill:
                raise CommandError(f"{name} (process {record.pid}) was told to end and still runs")
            send_signal(record.process, signal.SIGKILL)
            await _wait_until_gone(record, within_s)
        self._stopped_programs.append(f"{name} (process {record.pid})")


async def _wait_until_gone(record: ProcessRecord, within_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    # Not our child, so there is nothing to wait on but a pidfd, which old kernels and some containers lack.
    while record.is_alive() and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return not record.is_alive()
