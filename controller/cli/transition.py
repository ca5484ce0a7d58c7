"""Waits for the end of a load or an unload, and shows a progress bar on a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.cli.admin_client import AdminClient, Transition, TransitionGoal
from controller.cli.client_errors import LostControllerError, NoControllerError
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.output import count_words, one_line, print_error
from controller.schema.status import ModelState

if TYPE_CHECKING:
    from controller.schema.admin import AdminModel

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
        if sys.stderr.isatty():
            await _show_bar(client, name, task)
        return await task
    finally:
        task.cancel()


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
        except NoControllerError:
            if is_late:
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
