"""Keeps the processes of `roundhouse up` running, and ends them.

Each child leads a session of its own, so that Ctrl-C in the terminal reaches `up` alone, which ends the children one
after the other. Children write to the stderr of `up` themselves, so that they can still write after `up` was killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from controller.cli.exit_codes import ExitCode

FIRST_DELAY_S: Final = 0.5
"""Seconds before the restart after a first failure. Doubles with each further failure in a row."""
MAX_DELAY_S: Final = 30.0
"""Maximum seconds before a restart."""
STABLE_S: Final = 10.0
"""A child that ran for so many seconds counts its failures from 1 again, as the Docker Engine does for containers."""
_STDERR: Final = 2


@dataclass(frozen=True, slots=True)
class FatalExit:
    """Meaning of an exit code of a child's first start: a restart cannot help, so everything ends.

    After the first start the same code is no reason to end: what worked once may work again, since whatever the child
    lacks (its port, a file) may come back. The child is then restarted until an operator ends `up`.
    """

    exit: ExitCode
    words: str


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to keep running: its name for people, its command line and its whole environment."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    fatal: Mapping[int, FatalExit] = field(default_factory=dict)
    """Exit codes of the first start that end everything."""
    dies_alone: bool = False
    """Whether the others go on without it: it is then started again however it ended."""

    @property
    def title(self) -> str:
        """The process as the subject of a sentence: `the gateway`; with `dies_alone`, `the transfers program`."""
        return f"the {self.name} program" if self.dies_alone else f"the {self.name}"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why everything ends (`words`; None: it was asked to end), and the exit code of `up`."""

    exit: ExitCode
    words: str | None = None


def restart_delay_s(failures: int) -> float:
    """Return the seconds to wait before the next start, after `failures` failures in a row (1 or more): 0.5 s, doubled
    with each further one, up to 30 s."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 20))


def count_failures(failures: int, ran_s: float) -> int:
    """Return the number of failures in a row after one more, of a child that ran for `ran_s` seconds after `failures`
    earlier failures. A child that ran for `STABLE_S` (10 s) or longer counts from 1 again."""
    return 1 if ran_s >= STABLE_S else failures + 1


class Child:
    """One supervised process. `run` starts it, and starts it again with growing pauses when it fails, until
    `ask_to_end`. The process leads a session of its own, and outlives this object unless it is ended."""

    def __init__(self, spec: ChildSpec, *, say: Callable[[str], None], on_start: Callable[[], None]) -> None:
        """`say` takes a line for the operator; `on_start` is called after every start."""
        self.spec = spec
        self.exit_code: int | None = None
        """Exit code of the last process. None means that none has ended yet."""
        self._say = say
        self._on_start = on_start
        self._process: Process | None = None
        self._end_event = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the running process. None: it was not started yet, has ended, or waits to be started again."""
        is_running = self._process is not None and self._process.returncode is None
        return self._process.pid if is_running and self._process is not None else None

    async def run(self) -> Ending | None:
        """Start the process, and again whenever it fails. Call it once.

        Return, once the process has ended, None after `ask_to_end`; or why everything must end: the process ended with
        exit code 0, or its first start ended with a code in `spec.fatal`, unless it dies alone. A program that cannot
        be started counts as a failure and raises nothing.
        """
        loop = asyncio.get_running_loop()
        failures = starts = 0
        while not self._end_event.is_set():
            started_at = loop.time()
            code = await self._run_once()
            starts += 1
            if self._end_event.is_set():
                break
            if (ending := self._ending_of(code, first=starts == 1)) is not None:
                return ending
            failures = count_failures(failures, loop.time() - started_at)
            delay = restart_delay_s(failures)
            self._say(f"{self.spec.title} {ending_words(code)}; it is started again in {delay:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end_event.wait(), delay)
        return None

    async def _run_once(self) -> int:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv, env=dict(self.spec.env), stdin=DEVNULL, stdout=_STDERR, start_new_session=True
            )
        except OSError as error:
            self._say(f"{self.spec.title} cannot be started: {error.strerror or error}")
            return 1
        if self._end_event.is_set():
            # `ask_to_end` came while the process was being started, and nobody could send it a signal yet.
            self.kill()
        self._on_start()
        self.exit_code = await self._process.wait()
        return self.exit_code

    def _ending_of(self, code: int, *, first: bool) -> Ending | None:
        if self.spec.dies_alone:
            return None
        if code == 0:
            return Ending(ExitCode.DONE, f"{self.spec.title} was told to end")
        fatal = self.spec.fatal.get(code)
        if fatal is None or not first:
            return None
        return Ending(fatal.exit, f"{self.spec.title} ended: {fatal.words}")

    def ask_to_end(self) -> None:
        """Have `run` not start the process again, and return once the process has ended. A running process is left
        running: the caller signals it."""
        self._end_event.set()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, not to its process group. Does nothing where the process does not run."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to the process and its process group, and do not wait. Does nothing where the process does not
        run."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def ends_within(self, within_s: float) -> bool:
        """Wait for the end of the running process, and return whether it ended within `within_s` seconds. True at once
        if it was never started or has ended. Nothing is killed."""
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            return False
        return True


def ending_words(code: int) -> str:
    """Return the end of a process in words, by its exit code; a negative one is the number of the signal that ended
    it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class Supervisor:
    """Runs all children of one `up`, and restarts those that fail. Call `run` once; then end the children, and await
    `wait_until_ended`."""

    def __init__(
        self, specs: Sequence[ChildSpec], *, say: Callable[[str], None], on_change: Callable[[Mapping[str, int]], None]
    ) -> None:
        """`say` takes a line for the operator; `on_change` takes the running children's process ids by name after every
        start."""
        self._on_change = on_change
        self.children = {spec.name: Child(spec, say=say, on_start=self._report_pids) for spec in specs}
        self._tasks: list[asyncio.Task[Ending | None]] = []

    def _report_pids(self) -> None:
        self._on_change({name: child.pid for name, child in self.children.items() if child.pid is not None})

    async def run(self, stop_event: asyncio.Event) -> Ending:
        """Run the children until `stop_event` is set or one of them ends for good, and return why. Of several that end
        at once, the one with the highest exit code counts; after `stop_event` alone it is DONE without words.

        The other children still run then, but are not started again. The caller ends them.
        """
        self._tasks = [asyncio.create_task(child.run(), name=name) for name, child in self.children.items()]
        stop_task = asyncio.create_task(stop_event.wait())
        done_tasks, _ = await asyncio.wait([*self._tasks, stop_task], return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        for child in self.children.values():
            child.ask_to_end()
        endings = [ending for task in self._tasks if task in done_tasks and (ending := task.result()) is not None]
        # Of several that ended at once, report a failure rather than an orderly end.
        return max(endings, key=lambda ending: ending.exit, default=Ending(ExitCode.DONE))

    async def wait_until_ended(self) -> None:
        """Wait, without a limit, until every child has ended. Call it after `run` has returned. Signals none of them:
        call `send_signal` or `kill` before."""
        await asyncio.gather(*self._tasks)
