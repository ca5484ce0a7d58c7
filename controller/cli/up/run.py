"""One run of `roundhouse up`: starts the programs, keeps them running, and ends them in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from common.private_files import is_open_to_others
from controller.cli import stop_timeouts
from controller.cli.admin_client import AdminClient
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.orphans import stop_orphans
from controller.cli.settings import own_gateway_url
from controller.cli.up.announce import Announcer
from controller.cli.up.first_model import FirstModelWatcher
from controller.cli.up.marks import find_children, mark_specs
from controller.cli.up.page_build import PageBuild, is_wanted
from controller.cli.up.record import ChildRecorder, lock_state, remove_record
from controller.cli.up.side_programs import PROGRAMS_IN_END_ORDER, SIDE_PROGRAMS, program_socket
from controller.cli.up.supervisor import Child, ChildSpec, Ending, FatalExit, Supervisor
from controller.settings import ControllerSettings

CONTROLLER_ENDS: Final = {
    2: FatalExit(ExitCode.USAGE, "a setting is wrong"),
    3: FatalExit(ExitCode.ADDRESS_TAKEN, "its address is taken"),
    4: FatalExit(ExitCode.LOCKED, "the state folder is in use; `roundhouse down` ends what uses it"),
    5: FatalExit(ExitCode.FAILED, "the runtime does not answer"),
}
"""Exit codes of the first controller process of an `up` that end everything."""
GATEWAY_ENDS: Final = {
    2: FatalExit(ExitCode.USAGE, "a setting is wrong"),
    3: FatalExit(ExitCode.ADDRESS_TAKEN, "its address is taken; choose another with --host or --port"),
}
"""Exit codes of the first gateway process of an `up` that end everything."""


def program_specs(settings: ControllerSettings, environ: Mapping[str, str]) -> list[ChildSpec]:
    """Return how to start the controller, the gateway and the side programs that the settings want, in this order:
    command line, environment, and the exit codes that end everything. The environment is `environ` with the `settings`
    in it, or what a side program needs of that. Starts and imports none of the programs."""
    retrieval, transfers = (f"unix:{program_socket(settings, each.name)}" for each in SIDE_PROGRAMS)
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
        "ROUNDHOUSE_RETRIEVAL": str(settings.retrieval).lower(),
        "ROUNDHOUSE_RETRIEVAL_LISTEN": retrieval,
        "ROUNDHOUSE_RETRIEVAL_URL": retrieval,
        "ROUNDHOUSE_DOWNLOADS": settings.downloads or "",
        "ROUNDHOUSE_TRANSFERS_LISTEN": transfers,
        "ROUNDHOUSE_TRANSFERS_URL": transfers,
        "ROUNDHOUSE_GATEWAY_URL": own_gateway_url(settings),
    }
    # -P: do not import a folder `controller` that happens to be in the current folder.
    python = (sys.executable, "-P", "-m")
    specs = [
        ChildSpec("controller", (*python, "controller"), env, CONTROLLER_ENDS),
        ChildSpec("gateway", (*python, "gateway"), env, GATEWAY_ENDS),
    ]
    specs.extend(
        ChildSpec(each.name, (*python, each.name), each.variables(settings, env), dies_alone=True)
        for each in SIDE_PROGRAMS
        if each.is_wanted(settings)
    )
    return specs


def lock_and_check(state: Path) -> int:
    """Lock the state folder for this `up`. Return a file descriptor that holds the lock until the caller closes it.

    Raises CommandError with ExitCode.LOCKED where another `up` holds the lock, or programs of an earlier `up` still
    run; the lock is then free again. Raises CommandError also where the folder or the record cannot be used.
    """
    lock = lock_state(state)
    try:
        live_children = [
            f"{name} (process {child.pid})" for name in PROGRAMS_IN_END_ORDER for child in find_children(state, name)
        ]
    except CommandError:
        os.close(lock)
        raise
    if live_children:
        os.close(lock)
        message = f"an earlier `roundhouse up` left its {' and '.join(live_children)}; `roundhouse down` ends that"
        raise CommandError(message, ExitCode.LOCKED)
    return lock


class UpRun:
    """One run of `up`: starts, supervises and ends the programs. The caller holds the lock of the state folder until
    `run` has returned. Making one raises OSError where the state folder does not exist."""

    def __init__(self, settings: ControllerSettings, specs: Sequence[ChildSpec], announcer: Announcer) -> None:
        self._settings = settings
        self._announcer = announcer
        recorder = ChildRecorder(settings.state, announcer)
        marked_specs = mark_specs(settings.state, specs)
        self._supervisor = Supervisor(marked_specs, say=announcer.print_note, on_change=recorder.record_children)
        self._stop_event = asyncio.Event()
        self._force_event = asyncio.Event()
        self._left_engines = False
        """Whether the controller was killed while it ended its engines."""

    async def run(self) -> ExitCode:
        """Run until Ctrl-C, SIGTERM or SIGHUP, or until a program ends in a way that a restart cannot mend. Then end
        the gateway, after it the side programs and, with its engines, the controller, and kill what does not end in
        time: all of that within 15 s (`UP_ENDS_S`) and the gateway's grace period for running requests. Return the exit
        code of `up`: DONE after a signal or where a program was told to end, else that of the program's `FatalExit`;
        FAILED in place of DONE where engines may still run. Raises OSError where the record cannot be removed at the
        end.

        A second Ctrl-C kills the programs without waiting. Call it once, in the main thread: it takes over the signal
        handlers.
        """
        state = self._settings.state
        if is_open_to_others(state):
            self._announcer.print_note(f"other users of this host may look into {state}: `chmod 700 {state}`")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        watch_task = asyncio.create_task(self._watch_and_build())
        ending = await self._supervisor.run(self._stop_event)
        watch_task.cancel()  # which may end a build of the page, beside the programs
        if ending.words is not None:
            self._announcer.print_note(f"{ending.words}; stopping everything")
        code = await self._end(ending)
        [watch_error] = await asyncio.gather(watch_task, return_exceptions=True)
        if isinstance(watch_error, Exception):
            self._announcer.print_note(f"nobody watched for the first model: {watch_error!r}")
        self._announcer.print_note("stopped")
        return code

    async def _watch_and_build(self) -> None:
        # In this order, so that the first answer comes as early as without a page.
        await self._first_model().run()
        if is_wanted(os.environ):
            await PageBuild(own_gateway_url(self._settings), self._announcer, os.environ).run()

    def _first_model(self) -> FirstModelWatcher:
        settings = self._settings
        return FirstModelWatcher(settings.controller_url, own_gateway_url(settings), settings.desired, self._announcer)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop_event.is_set():
            self._stop_event.set()
            self._announcer.print_note("stopping: running requests may finish; Ctrl-C again does not wait")
        elif number is signal.SIGINT:
            # Only a second Ctrl-C means that the operator wants no waiting. A closed terminal window sends SIGHUP twice
            # (shell and kernel), and SIGTERM may come from `down`, which waits.
            self._force_event.set()

    async def _end(self, ending: Ending) -> ExitCode:
        """End the programs in order, or kill them after a second Ctrl-C. Then stop the engines that are left."""
        self._stop_event.set()
        orderly_task = asyncio.create_task(self._end_in_order())
        forced_task = asyncio.create_task(self._force_event.wait())
        await asyncio.wait([orderly_task, forced_task], return_when=asyncio.FIRST_COMPLETED)
        forced_task.cancel()
        if not orderly_task.done():
            self._announcer.print_note("forced: killing the programs, then stopping the engines")
            orderly_task.cancel()
            with suppress(asyncio.CancelledError):
                await orderly_task
            for child in self._supervisor.children.values():
                child.kill()
        else:
            orderly_task.result()
        await self._supervisor.wait_until_ended()
        return await self._end_engines(ending)

    async def _end_in_order(self) -> None:
        # The gateway first, because its running requests need the others.
        children = self._supervisor.children
        if (gateway := children.get("gateway")) is not None:
            gateway.send_signal(signal.SIGTERM)
            await self._wait_or_kill(gateway, stop_timeouts.up_gateway_timeout_s())
        side_programs = [children[program.name] for program in SIDE_PROGRAMS if program.name in children]
        for child in side_programs:
            child.send_signal(signal.SIGTERM)
        waits = [self._wait_or_kill(child, stop_timeouts.UP_PROGRAMS_S) for child in side_programs]
        await asyncio.gather(*waits, self._end_controller())

    async def _end_controller(self) -> None:
        controller = self._supervisor.children.get("controller")
        if controller is None or controller.pid is None:
            return
        asking = asyncio.create_task(self._ask_to_end(controller))
        try:
            self._left_engines = await self._wait_or_kill(controller, stop_timeouts.UP_PROGRAMS_S)
        finally:
            asking.cancel()

    async def _ask_to_end(self, controller: Child) -> None:
        grace_s = min(self._settings.stop_timeout_s, stop_timeouts.UP_ENGINES_S)
        try:
            async with AdminClient(self._settings.controller_url) as client:
                await client.shut_down(stop_engines=True, engines_grace_s=grace_s)
        except CommandError:
            # The controller does not listen yet, or no longer. Engines that it leaves are stopped afterwards.
            controller.send_signal(signal.SIGTERM)

    async def _wait_or_kill(self, child: Child, within_s: float) -> bool:
        """Return whether the child had to be killed."""
        if await child.ends_within(within_s):
            return False
        self._announcer.print_note(f"{child.spec.title} did not end within {within_s:g} s and is killed")
        child.kill()
        return True

    async def _end_engines(self, ending: Ending) -> ExitCode:
        """Stop engines that the controller left running. After a controller that ended as asked there are none."""
        longest_s = stop_timeouts.FORCED_S if self._force_event.is_set() else stop_timeouts.UP_ENGINES_S
        grace_s = stop_timeouts.UP_LEFT_S if self._left_engines else min(self._settings.stop_timeout_s, longest_s)
        locked_by_another = ending.exit is ExitCode.LOCKED
        if not locked_by_another:
            try:
                engine_names = await stop_orphans(self._settings, grace_s=grace_s, lock_wait_s=stop_timeouts.FORCED_S)
            except CommandError as error:
                self._announcer.print_note(f"engines may still run ({error}): `roundhouse down` stops them")
                return ending.exit or ExitCode.FAILED
            if engine_names:
                self._announcer.print_note(f"stopped what the controller left: {', '.join(engine_names)}")
        remove_record(self._settings.state)
        return ending.exit
