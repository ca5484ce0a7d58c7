"""The programs of one `up`: started, marked as its own, listed in `<state folder>/up.json`, restarted when they end,
and how long they get to end.

`up.json` may be incomplete after a crash; then marks find the processes: `up` keeps `up.lock` of its state folder open
as long as it lives, however it ends, and its children carry the folder's device and inode numbers in their environment.
The folder's path would not do: it may be the same inside a container, and is out of date once the folder is moved.

Each child leads a session of its own, so that Ctrl-C in the terminal reaches `up` alone, which ends the children one
after the other. Children write to the stderr of `up` themselves, so that they can still write after `up` was killed.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import fcntl
import json
import math
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from asyncio.subprocess import Process as RunningProcess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cli.output import CommandError, ExitCode, print_error
from common.atomic_write import write_atomic
from common.line_writer import LineWriter
from common.listening import BACKLOG, LISTENER, READY, ListenError, open_listeners
from contract.status import SCHEMA_VERSION
from controller.runtimes.process.groups import PROC, Process, boot_id, has_variable, is_alive, list_stats, read_stat

if TYPE_CHECKING:
    from controller.settings import ControllerSettings


MARGIN_S: Final = 30.0
"""Seconds added to a program's grace period, for everything else that the program must finish."""
GATEWAY_S: Final = 30.0
"""The gateway's default grace period for running requests, in seconds."""
FORCED_S: Final = 2.0
"""Grace period of engines after a second Ctrl-C, in seconds."""
UP_GATEWAY_S: Final = 6.0
"""Seconds that `up` gives the gateway beyond its grace period. Without running requests it needs none of that period.
"""
UP_PROGRAMS_S: Final = 30.0
"""Seconds that `up` gives retrieval, transfers and, with its engines, the controller: all of them at the same time. One
is enough, unless the machine is busy."""
UP_SAID_S: Final = 7.0
"""Seconds after which `up` says what it waits for."""
UP_ENGINES_S: Final = 5.0
"""Grace period of engines when `up` ends, at most: no request is left in them then."""
UP_LEFT_S: Final = 0.5
"""Grace period of engines that a controller which did not end in time has left."""
RAY_ENDS_S: Final = 15.0
"""Seconds that Ray gets to end, after the controller."""
UP_ENDS_S: Final = 40.0
"""Seconds within which `up` ends, beyond the gateway's grace period: more than the three above together, since what is
killed is not gone at once."""
KILLED_S: Final = 10.0
"""Seconds from a program's SIGKILL to its end. Only the kernel can delay that."""


def gateway_stop_timeout_s() -> float:
    """Return the seconds from SIGTERM until the gateway is killed: its grace period for running requests, plus 30 s
    (`MARGIN_S`).

    Reads `ROUNDHOUSE_SHUTDOWN_GRACE_S` itself, because the command line must not import the gateway's settings. A value
    that is no number of seconds counts as the default, 30 s; the gateway refuses it at its start.
    """
    return _gateway_grace_s() + MARGIN_S


def up_gateway_timeout_s() -> float:
    """Return the seconds from SIGTERM until `up` kills the gateway: its grace period for running requests
    (`ROUNDHOUSE_SHUTDOWN_GRACE_S` in the environment), plus 6 s (`UP_GATEWAY_S`)."""
    return _gateway_grace_s() + UP_GATEWAY_S


def _gateway_grace_s() -> float:
    try:
        grace_s = float(os.environ.get("ROUNDHOUSE_SHUTDOWN_GRACE_S") or GATEWAY_S)
    except ValueError:
        return GATEWAY_S
    return grace_s if 0 <= grace_s < math.inf else GATEWAY_S


def controller_stop_timeout_s(settings: ControllerSettings) -> float:
    """Return the seconds until the controller is killed: the grace period of engines, which end in parallel, plus 30 s
    (`MARGIN_S`)."""
    return settings.stop_timeout_s + MARGIN_S


def side_programs_stop_timeout_s() -> float:
    """Return the seconds that retrieval and transfers get together: 30 s (`MARGIN_S`) each."""
    return 2 * MARGIN_S


def up_stop_timeout_s() -> float:
    """Return the seconds until `up` is killed: the gateway's grace period and the 40 s (`UP_ENDS_S`) in which `up` ends
    everything else, plus 30 s (`MARGIN_S`)."""
    return _gateway_grace_s() + UP_ENDS_S + MARGIN_S


POLL_S: Final = 0.1
"""Seconds between two checks whether a process has ended."""


class Announcer:
    """Prints what `up` tells its operator: results to stdout, notes to stderr, where the children's logs go too.

    `as_json`: whether results are JSON; notes never are. A line that cannot be written (a log on a full disk, a reader
    that is gone or stalled) is lost; nothing is raised.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._stdout = LineWriter(sys.stdout)
        self._stderr = LineWriter(sys.stderr)

    def print_result(self, event: str, text: str, **details: Any) -> None:
        """Print to stdout something that a script may wait for: the line `text`, or with `--json` a JSON object on one
        line. Its fields are `event`, `message` (the text) and, beside these at the top level, each of `details`, which
        only the JSON shows. Raises TypeError for a detail that `json` cannot write."""
        if self._as_json:
            text = json.dumps({"event": event, "message": text, **details}, ensure_ascii=False)
        self._stdout.write_line(text)

    def print_note(self, text: str) -> None:
        """Print a line about the work to stderr, after `roundhouse: `; also with `--json` as plain text."""
        self._stderr.write_line(f"roundhouse: {text}")


RECORD_NAME: Final = "up.json"
LOCK_NAME: Final = "up.lock"


class ProcessRecord(BaseModel):
    """Identity of a process: pid and start time, so that a later process with the same pid is not mistaken for it.
    Valid until the machine boots again."""

    pid: int
    start_ticks: int
    """Start time in clock ticks since boot, as in /proc/<pid>/stat."""

    @classmethod
    def of(cls, pid: int) -> ProcessRecord | None:
        """Return the record of the process with this pid; None: there is no such process. A zombie still is one."""
        stat = read_stat(pid)
        return cls(pid=pid, start_ticks=stat.process.start_ticks) if stat is not None else None

    @property
    def process(self) -> Process:
        """The same pid and start time, in the type that the functions of `controller.runtimes.process` take."""
        return Process(self.pid, self.start_ticks)

    def is_alive(self) -> bool:
        """Return whether this very process still runs; a zombie counts as ended."""
        return is_alive(self.process)


class UpRecord(BaseModel):
    """The content of `up.json`: one `up` (or `service run`) and its children by name (`controller`, `gateway`,
    `retrieval`, `transfers`). `boot_id`: the boot of the machine in which it was written. `up` None: nothing is
    recorded."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = SCHEMA_VERSION
    boot_id: str = Field(default_factory=boot_id)
    up: ProcessRecord | None = None
    children: dict[str, ProcessRecord] = Field(default_factory=dict)


def read_record(state: Path) -> UpRecord:
    """Return the record in the state folder. Empty where there is none, or where it is from before the last boot.
    Recorded processes may have ended since. Raises CommandError where the file cannot be read or is damaged."""
    path = state / RECORD_NAME
    try:
        record = UpRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return UpRecord()
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise CommandError(f"{path} cannot be read ({reason}): remove it when no controller or gateway runs") from None
    return record if record.boot_id == boot_id() else UpRecord()


def write_record(state: Path, record: UpRecord) -> None:
    """Replace `up.json` by this record, atomically. Raises OSError where it cannot be written."""
    write_atomic(state / RECORD_NAME, record.model_dump_json().encode())


def remove_record(state: Path) -> None:
    """Remove the record; no error if there is none. Call it after all recorded processes have ended, which is not
    checked. Raises OSError where it cannot be removed."""
    (state / RECORD_NAME).unlink(missing_ok=True)


class ChildRecorder:
    """Writes `up.json` for this process and the programs that it supervises; a `Supervisor` calls it after each start.
    A failed write stops nothing, because `down` also finds programs by their marks."""

    def __init__(self, state: Path, announcer: Announcer) -> None:
        """`announcer` gets one note when records cannot be written, and the next only after one was written again."""
        self._state = state
        self._announcer = announcer
        self._is_recorded = True
        """Whether the last record was written."""

    def record_children(self, pids: Mapping[str, int]) -> None:
        """Replace the record by this process and these programs. `pids` maps program names to process ids; a process
        that is gone is left out. A failed write raises nothing."""
        children = {name: record for name, pid in pids.items() if (record := ProcessRecord.of(pid)) is not None}
        try:
            write_record(self._state, UpRecord(up=ProcessRecord.of(os.getpid()), children=children))
        except OSError as error:
            if self._is_recorded:
                path, reason = self._state / RECORD_NAME, error.strerror or error
                self._announcer.print_note(f"what runs cannot be recorded in {path} ({reason}); `down` finds it")
            self._is_recorded = False
        else:
            self._is_recorded = True


def lock_state(state: Path) -> int:
    """Create the state folder if it is missing, and lock it for one `up`. Return a file descriptor that holds the lock
    until the caller closes it or the process ends. Does not wait.

    Raises CommandError, with ExitCode.LOCKED where another `up` holds the lock, and with ExitCode.FAILED where the
    folder, or the record of the other `up`, cannot be used.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(f"state folder {state} cannot be used: {error.strerror or error}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        owner = read_record(state).up
        process = f" (process {owner.pid})" if owner is not None else ""
        message = f"another `roundhouse up`{process} runs on state folder {state}; `roundhouse down` ends it"
        raise CommandError(message, ExitCode.LOCKED) from None
    return descriptor


MARK_ENV: Final = "ROUNDHOUSE_UP_CHILD"
"""Environment variable of a child, with its name and the state folder of its `up`."""


def mark_variables(state: Path, name: str) -> dict[str, str]:
    """Return the environment variables to start the child `name` (`controller`, `gateway`) of an `up` with, so that
    `find_children` finds the child. `state`: the state folder of the `up`, which may be moved later.

    Raises OSError: the state folder does not exist or cannot be reached.
    """
    stat = state.stat()
    return {MARK_ENV: f"{name}:{stat.st_dev}:{stat.st_ino}"}


def mark_specs(state: Path, specs: Iterable[ChildSpec]) -> list[ChildSpec]:
    """Return copies of the specs with the variables of `mark_variables` added to their environments.

    Raises OSError: the state folder does not exist or cannot be reached.
    """
    return [replace(spec, env={**spec.env, **mark_variables(state, spec.name)}) for spec in specs]


def find_up(state: Path) -> ProcessRecord | None:
    """Return the `up` (or `service run`) that runs on this state folder, by its record or its lock; never this process.

    None means that none runs, or that it is not recorded and belongs to another user. Raises CommandError where the
    record cannot be read.
    """
    recorded = read_record(state).up
    if recorded is not None and recorded.pid != os.getpid() and recorded.is_alive():
        return recorded
    try:
        lock = (state / LOCK_NAME).stat()
    except FileNotFoundError:
        return None
    for stat in list_stats():
        if stat.process.pid != os.getpid() and not stat.has_ended and _has_open(stat.process.pid, lock):
            return ProcessRecord(pid=stat.process.pid, start_ticks=stat.process.start_ticks)
    return None


def find_children(state: Path, name: str) -> list[ProcessRecord]:
    """Return the running processes that an `up` on this state folder started as `name`, by its record or their mark.

    Usually there is one, or none. Raises CommandError where the record cannot be read.
    """
    recorded = read_record(state).children.get(name)
    found = [recorded] if recorded is not None and recorded.is_alive() else []
    return [*found, *(child for child in _find_marked(state, name) if child != recorded)]


def _find_marked(state: Path, name: str) -> list[ProcessRecord]:
    try:
        [(variable, value)] = mark_variables(state, name).items()
    except FileNotFoundError:
        return []
    # A child leads a session. Helper processes of a child inherit the mark and lead none; engines do not get the mark.
    return [
        ProcessRecord(pid=stat.process.pid, start_ticks=stat.process.start_ticks)
        for stat in list_stats()
        if stat.session == stat.process.pid and not stat.has_ended and has_variable(stat.process.pid, variable, value)
    ]


def _has_open(pid: int, file: os.stat_result) -> bool:
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:  # the process ended meanwhile, or belongs to another user
        return False
    for descriptor in descriptors:
        try:
            # Compare the name first: a stat of every open file of the machine could block on a lost file server.
            if descriptor.readlink().name == LOCK_NAME and os.path.samestat(descriptor.stat(), file):
                return True
        except OSError:
            continue
    return False


FIRST_DELAY_S: Final = 0.5
"""Seconds before the restart after a first failure. Doubles with each further failure in a row."""
MAX_DELAY_S: Final = 30.0
"""Maximum seconds before a restart."""
STABLE_S: Final = 10.0
"""A child that ran for so many seconds counts its failures from 1 again, as the Docker Engine does for containers."""
_STDERR: Final = 2


def listen_at(hosts: Sequence[str], port: int, passed: Iterable[int] = ()) -> list[socket.socket]:
    """Listen at every host, where `port` is 0 at one port that is free at all, and return the sockets, which the caller
    closes. `passed`: descriptors that this process was started with, which are taken if they are for these addresses.

    Raises CommandError with ExitCode.ADDRESS_TAKEN where an address cannot be listened on, with ExitCode.USAGE where a
    host name has no address.
    """
    with ExitStack() as stack:
        try:
            # Addresses can be used again at once, so that closing connections of an earlier run do not count.
            listeners = [stack.enter_context(each) for each in open_listeners(hosts, port, passed, print_error)]
        except ListenError as error:
            if error.is_unresolved:
                message, code = f"cannot listen on {error.host}: {error}; --host names the address", ExitCode.USAGE
            else:
                message, code = _describe_taken(f"{error.host}:{port}", str(error)), ExitCode.ADDRESS_TAKEN
            raise CommandError(message, code) from None
        for listener in listeners:
            try:
                # With address reuse, two sockets may be bound to one address, but only one may listen.
                listener.listen(BACKLOG)
            except OSError as error:
                ip, bound_port = listener.getsockname()[:2]
                message = _describe_taken(f"{ip}:{bound_port}", os.strerror(error.errno or 0))
                raise CommandError(message, ExitCode.ADDRESS_TAKEN) from None
        stack.pop_all()
        return listeners


def _describe_taken(address: str, reason: str) -> str:
    return f"cannot listen on {address}: {reason}; choose another with --host or --port"


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
    """Exit codes of the first start that end everything; with `dies_alone`, those after which it is not started
    again."""
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


REPLACED_WITHIN_S: Final = 60.0
"""Seconds that a process which replaces another has until it serves."""
_LAUNCHER: Final = """
import fcntl, os, sys
passed = [int(each) for each in sys.argv[1].split(",")]
copies = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 100) for each in passed]
for place, copy in enumerate(copies, 3):
    os.dup2(copy, place)
for each in passed:
    if each >= 3 + len(passed):
        os.close(each)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Program that becomes another, `argv[2:]`, which gets the descriptors of `argv[1]` where the protocol has them, from 3
on, and in a variable its own pid, which nobody knows before."""


def pass_on(argv: Sequence[str], files: Sequence[tuple[str, int]]) -> tuple[Sequence[str], dict[str, str]]:
    """Return the command line and the further variables that start `argv` with these descriptors, each with its name,
    by the protocol of sd_listen_fds(3). The started process must inherit the descriptors."""
    if not files:
        return argv, {}
    descriptors = ",".join(str(descriptor) for _, descriptor in files)
    variables = {"LISTEN_FDS": str(len(files)), "LISTEN_FDNAMES": ":".join(name for name, _ in files)}
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, descriptors, *argv), variables


class Child:
    """One supervised process. `run` starts it, and starts it again with growing pauses when it fails, until
    `ask_to_end`; `replace` starts another in its place. A process leads a session of its own, and outlives this object
    unless it is ended."""

    def __init__(self, spec: ChildSpec, *, say: Callable[[str], None], on_start: Callable[[], None]) -> None:
        """`say` takes a line for the operator; `on_start` is called after every start."""
        self.spec = spec
        self.listeners: Sequence[socket.socket] = ()
        """Listening sockets that each process gets. They stay open here, so that connections wait and are not refused
        while no process runs."""
        self.exit_code: int | None = None
        """Exit code of the last process. None means that none has ended yet."""
        self._say = say
        self._on_start = on_start
        self._process: RunningProcess | None = None
        self._beside: RunningProcess | None = None
        """During `replace` the other process: the new one until it serves, then the old one until it has ended."""
        self._replacing: asyncio.Future[None] | None = None
        """Done when the new process of `replace` serves or has failed; None: `replace` waits for none."""
        self._replaced = asyncio.Event()
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
            if self.spec.dies_alone and starts == 1 and (given_up := self.spec.fatal.get(code)) is not None:
                self._say(f"{self.spec.title} is not started again: {given_up.words}")
                await self._end_event.wait()
                break
            failures = count_failures(failures, loop.time() - started_at)
            delay = restart_delay_s(failures)
            self._say(f"{self.spec.title} {ending_words(code)}; it is started again in {delay:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end_event.wait(), delay)
        return None

    async def _run_once(self) -> int:
        try:
            self._process = await self._start()
        except OSError as error:
            self._say(f"{self.spec.title} cannot be started: {error.strerror or error}")
            return 1
        if self._end_event.is_set():
            # `ask_to_end` came while the process was being started, and nobody could send it a signal yet.
            self.kill()
        self._on_start()
        self.exit_code = await self._wait()
        return self.exit_code

    async def _start(self, *files: tuple[str, int]) -> RunningProcess:
        """Start a process with the listeners and these further descriptors, each with its name. Raises OSError."""
        files = (*((LISTENER, each.fileno()) for each in self.listeners), *files)
        argv, variables = pass_on(self.spec.argv, files)
        return await asyncio.create_subprocess_exec(
            *argv,
            env={**self.spec.env, **variables},
            stdin=DEVNULL,
            stdout=_STDERR,
            start_new_session=True,
            pass_fds=[descriptor for _, descriptor in files],
        )

    async def _wait(self) -> int:
        """Wait for the end of the running process, or of the one that has replaced it meanwhile; its exit code."""
        while True:
            process = self._process
            assert process is not None
            self._replaced.clear()
            waits = [asyncio.create_task(process.wait()), asyncio.create_task(self._replaced.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            if self._replacing is not None:
                await self._replacing  # it died meanwhile: the new process may serve soon
            if process is self._process and process.returncode is not None:
                return process.returncode

    async def replace(self, end_within_s: float) -> None:
        """Start another process while the running one serves. Once the new one serves, end the old one by SIGTERM, and
        by SIGKILL after `end_within_s` seconds; one that does not serve within 60 s (`REPLACED_WITHIN_S`) is killed,
        and the old one serves on. Say what came of it. Return when one process is left.

        The process must be one that says at its descriptor `READY` when it serves. Nothing is done, and that said,
        where none runs, or while another is being replaced.
        """
        old = self._process
        if self._end_event.is_set():
            return
        if self.pid is None or old is None or self._beside is not None or self._replacing is not None:
            self._say(f"{self.spec.title} is being started or restarted now: it is not restarted once more")
            return
        self._replacing = asyncio.get_running_loop().create_future()
        try:
            problem = await self._start_beside()
            if problem is None:
                self._process, self._beside = self._beside, old
                self._replaced.set()
                self._on_start()
                self._say(f"{self.spec.title} is restarted: the new process serves, the old one ends its requests")
            elif not self._end_event.is_set():
                self._say(f"{self.spec.title} is not restarted, the old process serves on: {problem}")
        finally:
            self._replacing.set_result(None)
            self._replacing = None
        if (leaving := self._beside) is not None:
            self._signal(leaving, signal.SIGTERM if problem is None else signal.SIGKILL)
            if not await _ends_within(leaving, end_within_s):
                self._say(f"the old process of {self.spec.title} did not end within {end_within_s:g} s and is killed")
                self._signal(leaving, signal.SIGKILL)
                await leaving.wait()
            self._beside = None
            if problem is None:
                self._say(f"the old process of {self.spec.title} has ended")

    async def _start_beside(self) -> str | None:
        """Start the process `_beside`, and return None once it serves, else why it does not."""
        loop = asyncio.get_running_loop()
        is_told = asyncio.Event()
        read_end, write_end = os.pipe()
        try:
            try:
                self._beside = await self._start((READY, write_end))
            finally:
                os.close(write_end)
            if self._end_event.is_set():
                return "everything ends"  # `ask_to_end` came while it was being started: nobody signalled it
            loop.add_reader(read_end, is_told.set)
            await asyncio.wait_for(is_told.wait(), REPLACED_WITHIN_S)
            if os.read(read_end, 1):
                return None
            return f"the new one {ending_words(await asyncio.wait_for(self._beside.wait(), KILLED_S))}"
        except TimeoutError:
            return f"the new one did not serve within {REPLACED_WITHIN_S:g} s"
        except OSError as error:
            return f"the new one cannot be started: {error.strerror or error}"
        finally:
            loop.remove_reader(read_end)
            os.close(read_end)

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
        """Send a signal to the process, not to its process group, and to the one that it replaces or that replaces it.
        Does nothing where the process does not run."""
        for process in self._list_processes():
            self._signal(process, number)

    def _list_processes(self) -> list[RunningProcess]:
        return [each for each in (self._process, self._beside) if each is not None]

    @staticmethod
    def _signal(process: RunningProcess, number: signal.Signals) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                if number is signal.SIGKILL:
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to the process and its process group, and do not wait. Does nothing where the process does not
        run."""
        self.send_signal(signal.SIGKILL)

    async def ends_within(self, within_s: float) -> bool:
        """Wait for the end of the running process, and return whether it ended within `within_s` seconds. True at once
        if it was never started or has ended. Nothing is killed."""
        return all(await asyncio.gather(*(_ends_within(each, within_s) for each in self._list_processes())))


async def _ends_within(process: RunningProcess, within_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), within_s)
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
        self._replace_tasks: list[asyncio.Task[None]] = []

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

    def replace_child(self, name: str, end_within_s: float) -> None:
        """Begin to replace the process of a child (`Child.replace`); it says what comes of it."""
        self._replace_tasks = [task for task in self._replace_tasks if not task.done()]
        self._replace_tasks.append(asyncio.create_task(self.children[name].replace(end_within_s)))

    async def wait_until_ended(self) -> None:
        """Wait, without a limit, until every child has ended. Call it after `run` has returned. Signals none of them:
        call `send_signal` or `kill` before."""
        await asyncio.gather(*self._tasks, *self._replace_tasks)


async def wait_until_gone(
    record: ProcessRecord, within_s: float, children: Mapping[str, ProcessRecord] | None = None
) -> bool:
    """Wait for the end of a process that is not this one's child. Return whether it ended in time. A line on stderr
    tells of each of `children`, by its name there, that ends meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    live_children = dict(children or {})
    # There is nothing to wait on but a pidfd, which old kernels and some containers lack.
    while record.is_alive() and loop.time() < deadline:
        for process_words in [words for words, child in live_children.items() if not child.is_alive()]:
            print_error(f"{process_words} has ended")
            del live_children[process_words]
        await asyncio.sleep(POLL_S)
    return not record.is_alive()
