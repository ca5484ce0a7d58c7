"""Shows how far a download is: bars on a terminal, else a line now and then. Both go to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from controller.cli.output import duration_words, print_error, size_words

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from controller.schema.downloads import Download

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
    if not sys.stderr.isatty():
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
