"""`roundhouse down`: stop everything."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import stop_timeouts
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import ControllerUrl, Json, Models, Runtime, State
from controller.cli.output import print_error, print_json, print_line
from controller.cli.settings import read_settings

if TYPE_CHECKING:
    from controller.cli.admin_client import AdminClient
    from controller.cli.up.record import ProcessRecord
    from controller.settings import ControllerSettings

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
        self._settings = settings
        self._url = url
        self._up_s = stop_timeouts.up_stop_timeout_s() if timeout_s is None else timeout_s
        self._gateway_s = stop_timeouts.gateway_stop_timeout_s() if timeout_s is None else timeout_s
        self._side_program_s = stop_timeouts.MARGIN_S if timeout_s is None else timeout_s
        self._controller_s = stop_timeouts.controller_stop_timeout_s(settings) if timeout_s is None else timeout_s
        self._stopped_programs: dict[str, float | None] = {}

    async def run(self) -> Mapping[str, float | None]:
        """End everything. Returns what was stopped, in words, each with the seconds until it was killed (None: it ended
        by itself).

        Raises CommandError where something cannot be ended.
        """
        from controller.cli.orphans import stop_orphans  # imports the controller's runtimes
        from controller.cli.up.marks import find_children, find_up
        from controller.cli.up.record import remove_record
        from controller.cli.up.side_programs import PROGRAMS_IN_END_ORDER, SIDE_PROGRAMS

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
        lock_wait_s = stop_timeouts.controller_stop_timeout_s(settings)
        engines = await stop_orphans(settings, grace_s=settings.stop_timeout_s, lock_wait_s=lock_wait_s)
        self._stopped_programs |= {f"engine {name}": None for name in engines}
        remove_record(settings.state)
        return self._stopped_programs

    async def _end_controllers(self, controllers: Sequence[ProcessRecord]) -> None:
        """End the controller that answers, and `controllers`, which an `up` started. Usually they are the same.

        Raises CommandError.
        """
        from controller.cli.admin_client import AdminClient
        from controller.cli.client_errors import NoControllerError

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
        from controller.cli.client_errors import NoControllerError

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
        if await _wait_until_gone(record, within_s, children or {}):
            self._stopped_programs[process_words] = None
        else:
            await self._kill(process_words, record, within_s)

    async def _kill(self, process_words: str, record: ProcessRecord, waited_s: float) -> None:
        if not record.is_alive():
            return
        print_error(f"{process_words} did not end within {waited_s:g} s: it is killed, and what it leaves is ended")
        _send_signal(process_words, record, signal.SIGKILL)
        if not await _wait_until_gone(record, stop_timeouts.KILLED_S, {}):
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


async def _wait_until_gone(record: ProcessRecord, within_s: float, children: Mapping[str, ProcessRecord]) -> bool:
    """Wait for the end of a process. Returns whether it ended in time. Prints a line for each of `children` that ends
    meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    live_children = dict(children)
    # Not our child, so there is nothing to wait on but a pidfd, which old kernels and some containers lack.
    while record.is_alive() and loop.time() < deadline:
        for process_words in [words for words, child in live_children.items() if not child.is_alive()]:
            print_error(f"{process_words} has ended")
            del live_children[process_words]
        await asyncio.sleep(POLL_S)
    return not record.is_alive()
