"""Following the controller: its events, a model on its way to a state, and downloads with their bars, on stderr."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from cli.admin_client import (
    AdminClient,
    LostControllerError,
    NoControllerError,
    RequestRefusedError,
    Transition,
    TransitionGoal,
)
from cli.output import (
    CommandError,
    ExitCode,
    count_words,
    duration_words,
    is_terminal,
    one_line,
    print_error,
    size_words,
)
from common.sse import SseEvent
from contract.downloads import FINAL_STATES, Download
from contract.errors import ErrorEnvelope
from contract.journal import JournalEntry
from contract.status import ModelState

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from contract.admin import AdminModel
    from contract.downloads import Download


FIRST_PAUSE_S = 0.2
"""Seconds before the first reconnect."""
LONGEST_PAUSE_S = 5.0
"""Maximum seconds between two reconnects."""
GAP = "gap"
"""Kind of the event that reports missing entries."""
ERROR = "error"
"""Kind of the last event of a gateway whose own end, or whose controller's end, breaks the stream."""


class EventFollower:
    """Passes each entry once, in order, to `handle_entry`, over as many connections as needed. Entries that the
    controller no longer keeps are missing, and an error line says so. `model` None and empty `kinds`: all. Uses an open
    `client`, and does not close it."""

    def __init__(
        self, client: AdminClient, model: str | None, kinds: Sequence[str], handle_entry: Callable[[JournalEntry], None]
    ) -> None:
        self._client = client
        self._model = model
        self._kinds = kinds
        self._handle_entry = handle_entry
        self._last_id = ""
        self._pause_s = FIRST_PAUSE_S
        self._is_reported = False

    async def follow_events(self, after: int | None) -> None:
        """Follow events until cancelled: those after the entry with the id `after`, or new ones where it is None. Never
        returns.

        A lost connection is reported once on stderr and made again, without a limit. Raises NoControllerError only
        where no controller answers at the start, and RequestRefusedError where it refuses at the start, or later with a
        status below 500; and CommandError for any other failure, also later. What `handle_entry` raises passes.
        """
        newest_id = (await self._client.list_models()).last_event_id
        self._last_id = str(newest_id if after is None else after)
        while True:
            reason = await self._follow_once()
            if not self._is_reported:
                print_error(f"the connection broke ({reason}); asking for what came after event {self._last_id}")
                self._is_reported = True
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    async def _follow_once(self) -> str:
        """Follow events over one connection. Returns why it ended."""
        events = self._client.follow_events(after=self._last_id, model=self._model, kinds=self._kinds)
        try:
            async with aclosing(events):
                async for event in events:
                    if event.kind == ERROR:
                        return _reason_of(event.data)
                    self._on_event(event)
        except NoControllerError as error:
            return error.reason
        except RequestRefusedError as error:
            # A gateway whose controller is away answers with 5xx.
            if error.status < 500:
                raise
            return str(error)
        return "the stream ended"

    def _on_event(self, event: SseEvent) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._is_reported = False
        if event.id:
            self._last_id = event.id
        if not event.data:
            return
        if event.kind == GAP:
            print_error("events were lost here: they are no longer kept; `roundhouse history` has the changes")
            return
        try:
            self._handle_entry(JournalEntry.model_validate_json(event.data))
        except ValidationError:
            print_error(f"event {event.id or '?'} cannot be read: it is of another version")


def _reason_of(data: str) -> str:
    try:
        return ErrorEnvelope.model_validate_json(data).error.message
    except ValidationError:
        return "it ended with an error"


POLL_S = 0.3
"""Seconds between two requests for the model's row."""


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """Content of the progress bar: the loaded share, 0 to 1 (None: unknown), and what is going on, in words."""

    share: float | None
    words: str


def progress_bar_of(row: AdminModel) -> ProgressBar:
    """Return the progress bar by the row of a model that loads or unloads. Its share is known only while the model
    loads and its engine reports it."""
    words = [f"{row.loaded_replicas} of {count_words(row.replicas, 'replica')} ready"]
    if row.runtime_state is ModelState.UNLOADING:
        words = [count_words(len(row.held_by), "running request") if row.held_by else "engines stop"]
    words += [one_line(reason) for reason in row.blocked[:1]]
    return ProgressBar(row.load_progress if row.runtime_state is ModelState.LOADING else None, "; ".join(words))


async def wait_for_transition(
    client: AdminClient, name: str, request: Coroutine[None, None, Transition], goal: TransitionGoal, wait_s: float
) -> Transition:
    """Await `request`, a load or unload that waits for its end, and return the result; PENDING where the time was too
    short.

    After a lost connection, ask for the model's row until it has reached `goal` or `wait_s` seconds have passed since
    the call, because the controller may restart and keeps the operator's load or unload. A lost connection is reported
    on stderr, and a progress bar is shown where that is a terminal.

    Raises NoControllerError where no controller answers at the end of that time, or at the start; RequestRefusedError
    where it refuses; CommandError for any other failure. Cancelling ends the waiting, not the transition.
    """
    deadline = asyncio.get_running_loop().time() + wait_s
    task = asyncio.create_task(_await_request(client, name, request, goal, deadline))
    try:
        if is_terminal(sys.stderr):
            await _show_bar(client, name, task)
        return await task
    finally:
        task.cancel()


async def follow_row(client: AdminClient, name: str, goal: TransitionGoal, wait_s: float) -> Transition:
    """Ask for the row of a model that is loaded because it is declared, until it has reached `goal` or failed, or
    `wait_s` seconds have passed (PENDING). Raises what `AdminClient.get_model` raises."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        row = await client.get_model(name)
        verdict = goal.judge_row(row)
        if verdict is not ExitCode.PENDING or loop.time() >= deadline:
            return Transition(verdict, row)
        await asyncio.sleep(POLL_S)


async def _await_request(
    client: AdminClient, name: str, request: Coroutine[None, None, Transition], goal: TransitionGoal, deadline: float
) -> Transition:
    try:
        return await request
    except LostControllerError as error:
        # The controller has stored the statement by now, so the load or unload survives a restart.
        print_error(f"the connection broke ({error.reason}); asking again")
    loop = asyncio.get_running_loop()
    while True:
        is_late = loop.time() >= deadline
        try:
            row = await client.get_model(name)
        except (NoControllerError, RequestRefusedError) as error:
            # 5xx: a gateway between here and the controller, or the controller before its first observation.
            if is_late or (isinstance(error, RequestRefusedError) and error.status < 500):
                raise
        else:
            verdict = goal.judge_row(row)
            if is_late or verdict is not ExitCode.PENDING:
                return Transition(verdict, row)
        await asyncio.sleep(min(POLL_S, max(0.0, deadline - loop.time())))


async def _show_bar(client: AdminClient, name: str, task: asyncio.Task[Transition]) -> None:
    """Show the progress bar until the task ends."""
    from rich.console import Console  # 50 ms
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task_id = progress.add_task(name, total=None, words="")
        while not (await asyncio.wait({task}, timeout=POLL_S))[0]:
            with suppress(CommandError):
                bar = progress_bar_of(await client.get_model(name))
                total = None if bar.share is None else 1.0
                progress.update(task_id, total=total, completed=bar.share or 0.0, words=bar.words)


STEP_PERCENT: Final = 10
"""Percent between two lines where there is no terminal."""
_TOTAL: Final = "all files"


class LineView:
    """Shows a download on stderr: a line for each new state, reason to wait, and tenth of the bytes."""

    def __init__(self) -> None:
        self._told: tuple[str, str | None, int] | None = None

    def show_download(self, download: Download) -> None:
        """Print a line with the download's state and progress to stderr, unless its state, its reason to wait and the
        tenth of its bytes are those of the last call. A line that cannot be written is dropped."""
        percent = 100 * download.done_bytes // download.total_bytes if download.total_bytes else 0
        shown = (download.state, download.waiting, percent // STEP_PERCENT)
        if shown != self._told:
            self._told = shown
            print_error(f"{download.state}{_progress_words(download, percent)}")


class BarView:
    """Shows a download by bars: one for each file, and one for all of them where there are several. The bars are added
    to `progress`, which the caller shows; their field `words` has the speed and the time left, or the state."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show_download(self, download: Download) -> None:
        """Move the bars to where the download is now; a file that is seen for the first time gets a bar of its own."""
        files = download.files if len(download.files) > 1 else []
        for file in files:
            self._move(file.path.rpartition("/")[2], file.done_bytes, file.size, "")
        name = _TOTAL if files else (download.main or download.reference).rpartition("/")[2]
        self._move(name, download.done_bytes, download.total_bytes or None, _rate_words(download))

    def _move(self, name: str, done: int, size: int | None, words: str) -> None:
        if name not in self._tasks:
            # Before the source was asked, the name is the reference's.
            if len(self._tasks) == 1 and not any(task.total for task in self._progress.tasks):
                self._progress.remove_task(self._tasks.popitem()[1])
            self._tasks[name] = self._progress.add_task(name, total=size, words=words)
        self._progress.update(self._tasks[name], completed=done, total=size, words=words)


@contextmanager
def open_view() -> Iterator[LineView | BarView]:
    """Context manager that yields a view, whose `show_download` shows a download on stderr within the block: with bars
    if stderr is a terminal, else with a line now and then."""
    if not is_terminal(sys.stderr):
        yield LineView()
        return
    from rich.console import Console  # 50 ms
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield BarView(progress)


def _rate_words(download: Download) -> str:
    if download.waiting is not None:
        return download.waiting
    if download.state != "downloading" or download.bytes_per_s is None:
        return download.state
    left = "" if download.remaining_s is None else f", {duration_words(download.remaining_s)} left"
    return f"{size_words(download.bytes_per_s)}/s{left}"


def _progress_words(download: Download, percent: int) -> str:
    if download.waiting is not None:
        return f": {download.waiting}"
    if download.state != "downloading" or not download.total_bytes:
        return ""
    rate = "" if download.bytes_per_s is None else f", {_rate_words(download)}"
    return f": {percent} % of {size_words(download.total_bytes)}{rate}"


LISTED_EVERY_S = 5.0
"""Seconds without a change after which the list of downloads is asked for."""


class DownloadFollower:
    """Waits for the end of one download. Uses an open `client`, and does not close it."""

    def __init__(self, client: AdminClient, ordered: Download, show: Callable[[Download], None]) -> None:
        """`ordered`: the download as its order was answered. `show` is called with each change."""
        self._client = client
        self._ordered = ordered
        self._show = show
        self._is_reported = False
        self._pause_s = FIRST_PAUSE_S

    async def wait_for_end(self) -> Download:
        """Wait without a limit, and return the download in its final state. A lost connection is reported once on
        stderr and made again. Call once. Raises RequestRefusedError where the controller refuses with a status below
        500, and CommandError where its TLS fails, it is of another version, or it does not list the download any
        more."""
        while True:
            try:
                if (end := await self._follow_once()) is not None:
                    return end
                reason = "the stream ended"
            except NoControllerError as error:
                reason = error.reason
            except RequestRefusedError as error:
                # While `transfers` or the controller is away, the answer is 5xx.
                if error.status < 500:
                    raise
                reason = str(error)
            if not self._is_reported:
                print_error(f"the connection broke ({reason}); the download goes on, and is asked for again")
                self._is_reported = True
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    async def _follow_once(self) -> Download | None:
        """Follow over one connection. None: it ended before the download."""
        await self._check_listed()
        downloads = self._client.follow_downloads()
        async with aclosing(downloads):
            while (each := await self._take_next(downloads)) is not None:
                if not self._is_ordered(each):
                    continue
                self._is_reported, self._pause_s = False, FIRST_PAUSE_S
                self._show(each)
                if each.state in FINAL_STATES:
                    return each
        return None

    async def _take_next(self, downloads: AsyncGenerator[Download, None]) -> Download | None:
        """Return the next change; None: the stream ended. The stream does not tell of a download that is forgotten, so
        the list is asked for while nothing comes."""
        arriving = asyncio.ensure_future(anext(downloads, None))
        try:
            while not (await asyncio.wait((arriving,), timeout=LISTED_EVERY_S))[0]:
                await self._check_listed()
            return await arriving
        finally:
            if not arriving.done():
                arriving.cancel()
                await asyncio.wait((arriving,))

    async def _check_listed(self) -> None:
        if not any(map(self._is_ordered, (await self._client.list_downloads()).downloads)):
            raise CommandError(f"the download of {self._ordered.reference} is listed no more: its files were removed")

    def _is_ordered(self, download: Download) -> bool:
        # An earlier run of the same reference has the same id.
        return download.id == self._ordered.id and download.created_at >= self._ordered.created_at
