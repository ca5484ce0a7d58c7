"""One run of `roundhouse service run`, which systemd starts. Engines keep running at its end, and the next run adopts
them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from controller.cli import stop_timeouts
from controller.cli.exit_codes import ExitCode
from controller.cli.up.announce import Announcer
from controller.cli.up.marks import find_children, mark_specs
from controller.cli.up.record import ChildRecorder, ProcessRecord, remove_record
from controller.cli.up.side_programs import SIDE_PROGRAMS
from controller.cli.up.supervisor import Child, ChildSpec, Supervisor
from controller.runtimes.process.groups import send_signal
from controller.settings import ControllerSettings

POLL_S = 0.1
"""Seconds between two checks whether a process has ended."""


class ServiceRun:
    """Runs the programs of `specs` (controller, gateway and the side programs) until a signal, and then ends these, but
    not the engines. Making one raises OSError where the state folder does not exist.

    The caller must hold `up.lock` of the state folder until `run` has returned, so that no `up` runs at the same time
    and `down` finds this process.
    """

    def __init__(self, settings: ControllerSettings, specs: Sequence[ChildSpec], announcer: Announcer) -> None:
        self._settings = settings
        self._announcer = announcer
        recorder = ChildRecorder(settings.state, announcer)
        marked_specs = mark_specs(settings.state, specs)
        self._supervisor = Supervisor(marked_specs, say=announcer.print_note, on_change=recorder.record_children)
        self._stop_event = asyncio.Event()

    async def run(self) -> ExitCode:
        """Run until SIGTERM, SIGINT or SIGHUP, or until a program ends in a way that a restart cannot mend. Then end
        gateway, side programs and controller in this order, by SIGKILL if they do not end in time, and return the exit
        code: DONE after a signal or where a program was told to end, else that of the program's `FatalExit`.

        Before the first start, programs that a killed run left behind are ended. Call it once, in the main thread: it
        takes over the signal handlers. Raises CommandError where the record of an earlier run cannot be read, and
        OSError where the record cannot be removed at the end.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop_event.set)
        await self._end_earlier_programs()
        ending = await self._supervisor.run(self._stop_event)
        if ending.words is not None:
            self._announcer.print_note(f"{ending.words}; stopping")
        for name, within_s in self._programs():
            if (child := self._supervisor.children.get(name)) is not None:
                await self._end_child(child, within_s)
        await self._supervisor.wait_until_ended()
        remove_record(self._settings.state)
        self._announcer.print_note("stopped; engines go on, and `roundhouse down` ends them")
        return ending.exit

    def _programs(self) -> tuple[tuple[str, float], ...]:
        """Return the programs in the order in which they end, each with the seconds it gets. The gateway is first, so
        that running requests may finish."""
        return (
            ("gateway", stop_timeouts.gateway_stop_timeout_s()),
            *((program.name, stop_timeouts.MARGIN_S) for program in SIDE_PROGRAMS),
            ("controller", stop_timeouts.controller_stop_timeout_s(self._settings)),
        )

    async def _end_child(self, child: Child, within_s: float) -> None:
        child.send_signal(signal.SIGTERM)
        if not await child.ends_within(within_s):
            self._announcer.print_note(f"{child.spec.title} did not end within {within_s:g} s and is killed")
            child.kill()

    async def _end_earlier_programs(self) -> None:
        """End programs that a killed run left behind, because the unit has KillMode=process."""
        for name, within_s in self._programs():
            for record in find_children(self._settings.state, name):
                self._announcer.print_note(f"ending the {name} of an earlier run (process {record.pid})")
                send_signal(record.process, signal.SIGTERM)
                if not await _wait_until_gone(record, within_s):
                    send_signal(record.process, signal.SIGKILL)
                    await _wait_until_gone(record, within_s)


async def _wait_until_gone(record: ProcessRecord, within_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while record.is_alive() and loop.time() < deadline:  # noqa: ASYNC110 - not our child
        await asyncio.sleep(POLL_S)
    return not record.is_alive()
