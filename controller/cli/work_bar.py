"""A progress bar on a terminal, for work whose parts are counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class WorkBar:
    """Shows how much of some work is done, within the block of `open_work_bar`, which makes it. Shows nothing where
    stderr is no terminal."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float, words: str | None = None) -> None:
        """Note that `amount` more is done, in the unit of the total. `words`: what is under way, shown beside the bar;
        None: as before."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, amount)
            if words is not None:
                self._progress.update(self._task, words=words)

    def set_total(self, total: float | None) -> None:
        """Note how much there is to do; None: it is not known."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)


@contextmanager
def open_work_bar(name: str, total: float | None) -> Iterator[WorkBar]:
    """Context manager that shows a bar on stderr within the block, if that is a terminal, and yields the object that
    moves it. `total`: how much there is to do; None: it is not known."""
    if not sys.stderr.isatty():
        yield WorkBar(None, None)
        return
    from rich.console import Console  # 50 ms
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield WorkBar(progress, progress.add_task(name, total=total, words=""))
