"""`roundhouse down`."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from controller.cli.exits import CommandError, Exit
from controller.cli.options import ControllerUrl, Json, Models, Runtime, State, settings_of
from controller.cli.output import say, say_json

if TYPE_CHECKING:
    from controller.cli.client import ControllerClient
    from controller.cli.up_record import ProcessRecord
    from controller.settings import ControllerSettings

POLL_S = 0.1
MARGIN_S = 30.0
"""Beyond the engines' own stop timeout, for all that a controller has to finish."""


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
    settings = settings_of(state=state, models=models, runtime=runtime)
    stopped = asyncio.run(_Down(settings, controller or settings.controller_url).run())
    if as_json:
        say_json({"stopped": stopped})
    elif stopped:
        for each in stopped:
            say(f"stopped {each}")
    else:
        say("nothing was running")
    return Exit.DONE


class _Down:
    """One run of `down`. Every step does nothing when there is nothing to do."""

    def __init__(self, settings: ControllerSettings, url: str) -> None:
        self._settings = settings
        self._url = url
        self._deadline_s = settings.stop_timeout_s + MARGIN_S
        self._stopped: list[str] = []

    async def run(self) -> list[str]:
        """What was stopped, in words."""
        from controller.cli.leftover_engines import stop_leftovers  # imports the controller's runtimes
        from controller.cli.up_record import read_record, remove_record

        record = read_record(self._settings.state)
        if record.up is not None and record.up.pid != os.getpid():
            # It stops its children in the right order, and their engines.
            await self._end("roundhouse up", record.up)
        await self._ask_controller()
        for name in ("gateway", "controller"):
            if name in record.children:
                await self._end(name, record.children[name])
        engines = await stop_leftovers(
            self._settings, grace_s=self._settings.stop_timeout_s, lock_wait_s=self._deadline_s
        )
        self._stopped += (f"engine {name}" for name in engines)
        remove_record(self._settings.state)
        return self._stopped

    async def _ask_controller(self) -> None:
        from controller.cli.client import ControllerClient, NoControllerError

        try:
            async with ControllerClient(self._url) as client:
                await client.shut_down(stop_engines=True)
                self._stopped.append("controller and its engines")
                await self._until_gone(client)
        except NoControllerError:
            return

    async def _until_gone(self, client: ControllerClient) -> None:
        """Ask until NoControllerError. That it has ended its engines too, its lock tells, where that is in reach."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        while loop.time() < deadline:
            await client.status()
            await asyncio.sleep(POLL_S)
        raise CommandError(f"the controller at {self._url} was asked to end and still runs")

    async def _end(self, name: str, record: ProcessRecord) -> None:
        """End a recorded process: SIGTERM, and SIGKILL for its session when it does not end."""
        from controller.runtimes.process_groups import send

        if not record.alive():
            return
        send(record.process, signal.SIGTERM)
        if not await self._gone(record):
            if name == "roundhouse up":
                raise CommandError(f"`roundhouse up` (process {record.pid}) was told to end and still runs")
            send(record.process, signal.SIGKILL)
            await self._gone(record)
        self._stopped.append(f"{name} (process {record.pid})")

    async def _gone(self, record: ProcessRecord) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        # Not our child, so there is nothing to wait on but a pidfd, which old kernels and some containers lack.
        while record.alive() and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return not record.alive()
