"""One run of `roundhouse up`: start, keep running, end in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from controller.cli import stop_timeouts
from controller.cli.client import ControllerClient
from controller.cli.exit_codes import CommandError, Exit
from controller.cli.orphans import stop_leftovers
from controller.cli.up.announce import Announcer
from controller.cli.up.first_model import FirstModel
from controller.cli.up.record import ProcessRecord, UpRecord, lock_state, read_record, remove_record, write_record
from controller.cli.up.supervisor import Child, ChildSpec, Ending, Fatal, Supervisor
from controller.settings import ControllerSettings, url_of

CONTROLLER_ENDS: Final = {
    2: Fatal(Exit.USAGE, "a setting is wrong"),
    3: Fatal(Exit.ADDRESS_TAKEN, "its address is taken"),
    4: Fatal(Exit.LOCKED, "the state folder is in use; `roundhouse down` ends what uses it"),
    5: Fatal(Exit.FAILED, "the runtime does not answer", at_first_only=True),
}
"""Exit codes of `python -m controller`."""
GATEWAY_ENDS: Final = {
    2: Fatal(Exit.USAGE, "a setting is wrong"),
    3: Fatal(Exit.ADDRESS_TAKEN, "its address is taken; choose another with --host or --port"),
}
"""Exit codes of `python -m gateway`."""


def program_specs(settings: ControllerSettings, environ: Mapping[str, str]) -> tuple[ChildSpec, ChildSpec]:
    """The controller and the gateway as they are started. Neither is imported here."""
    env = {
        **environ,
        "ROUNDHOUSE_DESIRED": str(settings.desired),
        "ROUNDHOUSE_STATE": str(settings.state),
        "ROUNDHOUSE_MODELS": str(settings.models),
        "ROUNDHOUSE_RUNTIME": settings.runtime,
        "ROUNDHOUSE_HOST": settings.host,
        "ROUNDHOUSE_PORT": str(settings.port),
        "ROUNDHOUSE_CONTROLLER_LISTEN": settings.listen,
        "ROUNDHOUSE_CONTROLLER_URL": settings.controller_url,
    }
    # -P: a folder `controller` where the operator happens to stand is not ours.
    python = (sys.executable, "-P", "-m")
    return (
        ChildSpec("controller", (*python, "controller"), env, CONTROLLER_ENDS),
        ChildSpec("gateway", (*python, "gateway"), env, GATEWAY_ENDS),
    )


def lock_and_check(state: Path) -> int:
    """Lock the state folder for this `up`; the descriptor. Raises CommandError when an earlier one's children live."""
    lock = lock_state(state)
    try:
        live_children = [
            f"{name} (process {child.pid})" for name, child in read_record(state).children.items() if child.alive()
        ]
    except CommandError:
        os.close(lock)
        raise
    if live_children:
        os.close(lock)
        message = f"an earlier `roundhouse up` left its {' and '.join(live_children)}; `roundhouse down` ends that"
        raise CommandError(message, Exit.LOCKED)
    return lock


class UpRun:
    """Holds the children from their start to their end."""

    def __init__(self, settings: ControllerSettings, specs: Sequence[ChildSpec], announcer: Announcer) -> None:
        self._settings = settings
        self._say = announcer
        self._supervisor = Supervisor(specs, say=announcer.note, on_change=self._record)
        self._told = asyncio.Event()
        self._forced = asyncio.Event()

    async def run(self) -> Exit:
        """Until Ctrl-C, SIGTERM, SIGHUP, or an end of a child that a new start cannot mend."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        watch_task = asyncio.create_task(self._first_model().run())
        ending = await self._supervisor.run(self._told)
        watch_task.cancel()
        with suppress(asyncio.CancelledError):
            await watch_task
        if ending.words is not None:
            self._say.note(f"{ending.words}; stopping everything")
        code = await self._end(ending)
        self._say.note("stopped")
        return code

    def _first_model(self) -> FirstModel:
        settings = self._settings
        gateway_url = url_of(settings.host, settings.port)
        return FirstModel(settings.controller_url, gateway_url, settings.desired, settings.models, self._say)

    def _record(self, pids: Mapping[str, int]) -> None:
        children = {name: record for name, pid in pids.items() if (record := ProcessRecord.of(pid)) is not None}
        write_record(self._settings.state, UpRecord(up=ProcessRecord.of(os.getpid()), children=children))

    def _on_signal(self) -> None:
        if self._told.is_set():
            self._forced.set()
        else:
            self._say.note("stopping: running requests may finish; Ctrl-C again does not wait")
            self._told.set()

    async def _end(self, ending: Ending) -> Exit:
        """End the children in order, then what is left of the engines."""
        self._told.set()
        orderly_task = asyncio.create_task(self._end_in_order())
        forced_task = asyncio.create_task(self._forced.wait())
        await asyncio.wait([orderly_task, forced_task], return_when=asyncio.FIRST_COMPLETED)
        forced_task.cancel()
        if not orderly_task.done():
            self._say.note("forced: killing the controller and the gateway, then stopping the engines")
            orderly_task.cancel()
            with suppress(asyncio.CancelledError):
                await orderly_task
            for child in self._supervisor.children.values():
                child.kill()
        else:
            orderly_task.result()
        await self._supervisor.finished()
        return await self._end_engines(ending)

    async def _end_in_order(self) -> None:
        # The gateway first: its running requests need the engines.
        gateway, controller = self._supervisor.children.get("gateway"), self._supervisor.children.get("controller")
        if gateway is not None:
            gateway.signal(signal.SIGTERM)
            await self._ended(gateway, stop_timeouts.of_gateway())
        if controller is not None and controller.pid is not None:
            await self._ask_to_end(controller)
            await self._ended(controller, stop_timeouts.of_controller(self._settings))

    async def _ask_to_end(self, controller: Child) -> None:
        try:
            async with ControllerClient(self._settings.controller_url) as client:
                await client.shut_down(stop_engines=True)
        except CommandError:
            # Not listening yet, or not any more. What it leaves running is stopped afterwards.
            controller.signal(signal.SIGTERM)

    async def _ended(self, child: Child, within_s: float) -> None:
        if not await child.ended(within_s):
            self._say.note(f"the {child.spec.name} did not end within {within_s:g} s and is killed")
            child.kill()
            await child.ended(within_s)

    async def _end_engines(self, ending: Ending) -> Exit:
        """Nothing is left to do after a controller that ended as asked; after any other its engines may run."""
        grace_s = stop_timeouts.FORCED_S if self._forced.is_set() else self._settings.stop_timeout_s
        locked_by_another = ending.exit is Exit.LOCKED
        if not locked_by_another:
            try:
                engine_names = await stop_leftovers(self._settings, grace_s=grace_s, lock_wait_s=stop_timeouts.MARGIN_S)
            except CommandError as error:
                self._say.note(f"engines may still run ({error}): `roundhouse down` stops them")
                return ending.exit or Exit.FAILED
            if engine_names:
                self._say.note(f"stopped what the controller left: {', '.join(engine_names)}")
        remove_record(self._settings.state)
        return ending.exit
