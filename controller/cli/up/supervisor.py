"""Keeps the processes of `roundhouse up` running, and ends them in order.

Each child leads a session of its own: a Ctrl-C in the terminal reaches `up` alone, which ends them one after the other.
They write to this process's stderr themselves, so that they can go on writing when it is killed.
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
MAX_DELAY_S: Final = 30.0
STABLE_S: Final = 10.0
"""A child that ran this long starts counting its failures anew, as a container of the Docker Engine does."""
_STDERR: Final = 2


@dataclass(frozen=True, slots=True)
class FatalExit:
    """What an exit code of a child's first start means: starting it again cannot help, so everything ends.

    After the first start the same code is no reason to end: what held once may hold again, and whatever the child is
    refused (its port, a file) may be given back. The child is started again then, until an operator ends `up`.
    """

    exit: ExitCode
    words: str


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process to keep running."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    fatal: Mapping[int, FatalExit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why everything ends, and what `up` then exits with."""

    exit: ExitCode
    words: str | None = None


def restart_delay_s(failures: int) -> float:
    """How long to wait before the next start after so many failures in a row (1 or more)."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 20))


def count_failures(failures: int, ran_s: float) -> int:
    """Failures in a row, after one more end: of a child that ran `ran_s` after `failures` before."""
    return 1 if ran_s >= STABLE_S else failures + 1


class Child:
    """One supervised process: started, started again when it fails, ended once."""

    def __init__(self, spec: ChildSpec, *, say: Callable[[str], None], on_start: Callable[[], None]) -> None:
        """`say` takes a line for the operator; `on_start` is called after every start."""
        self.spec = spec
        self.exit_code: int | None = None
        """Of the last process that ended."""
        self._say = say
        self._on_start = on_start
        self._process: Process | None = None
        self._end_event = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """None: it does not run now."""
        is_running = self._process is not None and self._process.returncode is None
        return self._process.pid if is_running and self._process is not None else None

    async def run(self) -> Ending | None:
        """Keep it running. Returns why everything must end, or None when this child was told to."""
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
            self._say(f"the {self.spec.name} {ending_words(code)}; it is started again in {delay:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end_event.wait(), delay)
        return None

    async def _run_once(self) -> int:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv, env=dict(self.spec.env), stdin=DEVNULL, stdout=_STDERR, start_new_session=True
            )
        except OSError as error:
            self._say(f"the {self.spec.name} cannot be started: {error.strerror or error}")
            return 1
        if self._end_event.is_set():
            # Everything was told to end while this one was being started: nobody knew it to tell it so.
            self.kill()
        self._on_start()
        self.exit_code = await self._process.wait()
        return self.exit_code

    def _ending_of(self, code: int, *, first: bool) -> Ending | None:
        if code == 0:
            return Ending(ExitCode.DONE, f"the {self.spec.name} was told to end")
        fatal = self.spec.fatal.get(code)
        if fatal is None or not first:
            return None
        return Ending(fatal.exit, f"the {self.spec.name} ended: {fatal.words}")

    def ask_to_end(self) -> None:
        """From now on it is not started again."""
        self._end_event.set()

    def send_signal(self, number: signal.Signals) -> None:
        """To the process itself, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to its whole session's process group."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def ends_within(self, within_s: float) -> bool:
        """Whether it ends within that time."""
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            return False
        return True


def ending_words(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class Supervisor:
    """The children of one `up`."""

    def __init__(
        self, specs: Sequence[ChildSpec], *, say: Callable[[str], None], on_change: Callable[[Mapping[str, int]], None]
    ) -> None:
        """`on_change` takes the running children's pids by name after every start."""
        self._on_change = on_change
        self.children = {spec.name: Child(spec, say=say, on_start=self._report_pids) for spec in specs}
        self._tasks: list[asyncio.Task[Ending | None]] = []

    def _report_pids(self) -> None:
        self._on_change({name: child.pid for name, child in self.children.items() if child.pid is not None})

    async def run(self, stop_event: asyncio.Event) -> Ending:
        """Run all of them until `stop_event` is set or one ends for good. They still run then: end them."""
        self._tasks = [asyncio.create_task(child.run(), name=name) for name, child in self.children.items()]
        stop_task = asyncio.create_task(stop_event.wait())
        done_tasks, _ = await asyncio.wait([*self._tasks, stop_task], return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        for child in self.children.values():
            child.ask_to_end()
        endings = [ending for task in self._tasks if task in done_tasks and (ending := task.result()) is not None]
        # Of several that ended at once the failure is the news.
        return max(endings, key=lambda ending: ending.exit, default=Ending(ExitCode.DONE))

    async def wait_until_ended(self) -> None:
        """Wait until no child runs any more."""
        await asyncio.gather(*self._tasks)
