"""The live picture of a load test on a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from controller.cli.bench.load import LevelProgress
from controller.cli.bench.report import COLUMNS
from controller.cli.bench.statistics import describe_values, list_last_seconds
from controller.cli.output import table_of

if TYPE_CHECKING:
    from rich.console import Group

REFRESH_S: Final = 0.25
HISTORY_S: Final = 40
"""Seconds of the graph."""
BLOCKS: Final = " ▁▂▃▄▅▆▇█"


class LiveView:
    """The picture of a load test: a table of the finished levels and the one under way, and a graph of the text that
    came in its last 40 seconds. It prints nothing itself: `show_live` draws it."""

    def __init__(self, model: str, requests: int, clock: Callable[[], float]) -> None:
        """`requests`: of each level. `clock` is the load's."""
        self._model = model
        self._requests = requests
        self._clock = clock
        self._finished_rows: Sequence[tuple[str, ...]] = ()
        self._progress: LevelProgress | None = None

    def begin_level(self, progress: LevelProgress) -> None:
        """Show this level as the one under way from now on; `render` reads its progress each time."""
        self._progress = progress

    def show_finished(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Show these rows (cells of `report.COLUMNS`) of all finished levels, in place of earlier ones, and no level
        under way until the next `begin_level`."""
        self._finished_rows, self._progress = rows, None

    def render(self) -> Group:
        """Return the picture as it is now, for rich to print."""
        from rich.console import Group
        from rich.text import Text

        progress = self._progress
        rows = [*self._finished_rows, *([] if progress is None else [self._level_row(progress)])]
        lines = [Text(f"{self._model}: Ctrl-C ends the test and saves what it has", style="dim")]
        if progress is not None:
            now_s = self._clock()
            counts = list_last_seconds(progress.piece_counts, now_s, HISTORY_S)
            done = len(progress.samples)
            state = f"{done} of {self._requests} done, {progress.running} under way"
            lines += [Text(state), Text(f"{draw_sparkline(counts)} {counts[-1]} tokens in the last second")]
        return Group(table_of(COLUMNS, rows), *lines)

    def _level_row(self, progress: LevelProgress) -> tuple[str, ...]:
        samples = list(progress.samples)
        ttft = describe_values(sample.ttft_s * 1000 for sample in samples if sample.ttft_s is not None)
        percentiles = ("-", "-")
        if ttft is not None:
            percentiles = (f"{ttft.percentiles[50]:.1f} ms", f"{ttft.percentiles[95]:.1f} ms")
        failed = sum(sample.error is not None for sample in samples)
        elapsed_s = self._clock() - progress.began
        speed = sum(sample.output_tokens for sample in samples) / elapsed_s if elapsed_s > 0 else 0.0
        return (
            f"{progress.concurrency} ...",
            str(len(samples) - failed),
            str(failed),
            f"{speed:.1f}",
            *percentiles,
            "-",
            "-",
        )


def draw_sparkline(counts: Sequence[int]) -> str:
    """Return a graph of one line of text, a character per count: a space for 0, else a block whose height is the
    count's share of the largest count, at least one eighth; the largest is a full block."""
    largest = max(counts, default=0)
    if largest <= 0:
        return BLOCKS[0] * len(counts)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[0 if count == 0 else max(1, round(count / largest * top))] for count in counts)


@asynccontextmanager
async def show_live(view: LiveView) -> AsyncIterator[None]:
    """Async context manager that keeps the picture on stderr, drawn four times a second, and removes it at the end. It
    draws nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    with Live(view.render(), console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        async def refresh() -> None:
            while True:
                await asyncio.sleep(REFRESH_S)
                live.update(view.render(), refresh=True)

        task = asyncio.create_task(refresh())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
