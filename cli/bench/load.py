"""A load test: its requests, and a view of it while it runs."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from cli.admin_client import read_error
from cli.bench.report import COLUMNS, LevelResult, RequestSample, describe_values, list_last_seconds, summarize_level
from cli.gateway_client import GatewayAddress, GatewayClient, unreached_error
from cli.output import CommandError, is_terminal, table_of
from common.sse import SseReader
from controller import __version__

if TYPE_CHECKING:
    from rich.console import Group


_CHAT: Final = "/v1/chat/completions"
_OWN_LIMITS: Final = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)
"""Errors of a connection that say nothing of the gateway: this process or machine can open no more."""
LOST: Final = "connection_lost"
"""Error of a request whose connection failed."""
INCOMPLETE: Final = "incomplete_stream"
"""Error of an answer that ended without its end mark."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a load test sends to a model: `requests` chat completions per level, each with the text `prompt` after a
    number of its own, and `max_tokens` answer tokens at most. Each level ends with its last request or after `seconds`,
    whichever is first."""

    model: str
    prompt: str
    """Sent after a number that is another for each request, so that no engine answers from its prefix cache."""
    max_tokens: int
    requests: int
    """Of each level."""
    seconds: float
    """Of each level."""


@dataclass(slots=True)
class RunningRequest:
    """A request under way, as it is measured. Times are in seconds of the `LoadGenerator`'s clock."""

    began: float
    first_piece: float | None = None
    last_piece: float | None = None
    gaps: list[float] = field(default_factory=list)
    pieces: int = 0
    counted_tokens: int | None = None
    """As the engine counted them; None until it said so."""
    error: str | None = None
    has_ended: bool = False

    def note_piece(self, now: float) -> None:
        """Count a piece of text that came at `now`, by the load's clock, and the gap since the piece before."""
        if self.last_piece is None:
            self.first_piece = now
        else:
            self.gaps.append(now - self.last_piece)
        self.last_piece = now
        self.pieces += 1

    def to_sample(self, level_began: float, now: float) -> RequestSample:
        """Return what was measured until `now`. `level_began` and `now` are times of the load's clock. A request that
        has neither ended nor failed counts as cut."""
        return RequestSample(
            started_s=self.began - level_began,
            duration_s=now - self.began,
            ttft_s=None if self.first_piece is None else self.first_piece - self.began,
            gaps_s=tuple(self.gaps),
            output_tokens=self.pieces if self.counted_tokens is None else self.counted_tokens,
            error=self.error,
            is_cut=self.error is None and not self.has_ended,
        )


@dataclass(slots=True)
class LevelProgress:
    """One level under way, for the live picture; it changes until the level ends. `began` is a time of the load's clock
    in seconds, `samples` are the requests that have ended, `running` is the number of those that have not."""

    concurrency: int
    began: float
    samples: list[RequestSample] = field(default_factory=list)
    running: int = 0
    piece_counts: Counter[int] = field(default_factory=Counter)
    """Pieces of text by the whole second of the clock in which they came."""


class LoadGenerator(GatewayClient):
    """Sends streaming chat completions to one gateway. Use it in `async with`, and run one level at a time.

    `clock` returns seconds that never go back. `stop_event`, once set, ends every level; what was measured is kept. The
    first connection that is refused sets it.
    """

    def __init__(
        self, address: GatewayAddress, plan: LoadPlan, *, clock: Callable[[], float], stop_event: asyncio.Event
    ) -> None:
        """Connect to nothing yet."""
        super().__init__(address, {"user-agent": f"roundhouse-bench/{__version__}"})
        self._plan = plan
        self._clock = clock
        self._stop_event = stop_event
        self._numbers = count(1)
        self.unreached: CommandError | None = None
        """That no gateway answered any more, which ends the test; None: it did."""

    async def warm_model(self) -> None:
        """Ask for one token, which loads an `autoload` model and warms the engine up.

        Returns early where the test is stopped. Raises CommandError: NO_CONTROLLER where no gateway answers, FAILED
        with the gateway's own message where it refuses, or where no answer comes within the seconds of a level.
        """
        body = {"model": self._plan.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        ask_task = asyncio.create_task(self._ask("POST", _CHAT, json=body))
        stop_task = asyncio.create_task(self._stop_event.wait())
        await asyncio.wait({ask_task, stop_task}, timeout=self._plan.seconds, return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        if not ask_task.done():
            ask_task.cancel()
            await asyncio.gather(ask_task, return_exceptions=True)
            if not self._stop_event.is_set():
                raise CommandError(f"{self._plan.model} has not answered within {self._plan.seconds:g} s")
            return
        ask_task.result()

    async def run_level(self, concurrency: int, on_begin: Callable[[LevelProgress], None]) -> LevelResult:
        """Keep `concurrency` requests under way until the plan's requests are done, its seconds have passed, or the
        test is stopped, and return what was measured, with the requests in the order of their start. Requests that run
        at the end are cancelled and counted as cut; failed ones raise nothing, and are samples with an `error`.
        `on_begin` is called once, with the level's progress, which changes until this returns."""
        progress = LevelProgress(concurrency, self._clock())
        on_begin(progress)
        numbers = iter(range(self._plan.requests))
        workers = [asyncio.create_task(self._work(numbers, progress)) for _ in range(concurrency)]
        all_done = asyncio.gather(*workers)
        stop_task = asyncio.create_task(self._stop_event.wait())
        waited: set[asyncio.Future[Any]] = {all_done, stop_task}
        await asyncio.wait(waited, timeout=self._plan.seconds, return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        duration_s = self._clock() - progress.began
        for worker in workers:
            worker.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
        await asyncio.gather(all_done, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        samples = tuple(sorted(progress.samples, key=lambda sample: sample.started_s))
        return LevelResult(summarize_level(concurrency, samples, duration_s), samples)

    async def _work(self, numbers: Iterator[int], progress: LevelProgress) -> None:
        for _ in numbers:
            request = RunningRequest(self._clock())
            progress.running += 1
            try:
                await self._stream(request, progress)
            finally:
                progress.running -= 1
                progress.samples.append(request.to_sample(progress.began, self._clock()))

    async def _stream(self, request: RunningRequest, progress: LevelProgress) -> None:
        body = {
            "model": self._plan.model,
            "messages": [{"role": "user", "content": f"({next(self._numbers)}) {self._plan.prompt}"}],
            "max_tokens": self._plan.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with self._session.post(self._url + _CHAT, json=body) as answer:
                if answer.status >= 400:
                    request.error = _error_code(answer.status, await answer.read())
                    return
                reader = SseReader()
                async for chunk in answer.content.iter_any():
                    now = self._clock()
                    for event in reader.feed_bytes(chunk):
                        self._note_event(event.data, now, request, progress)
        except aiohttp.ClientConnectorError as error:
            request.error = LOST
            if error.os_error.errno not in _OWN_LIMITS:
                self.unreached = unreached_error(self._url, error)
                self._stop_event.set()
        except (aiohttp.ClientError, OSError):
            request.error = LOST
        if request.error is None and not request.has_ended:
            request.error = INCOMPLETE

    def _note_event(self, data: str, now: float, request: RunningRequest, progress: LevelProgress) -> None:
        if data == "[DONE]":
            request.has_ended = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            request.error = "invalid_stream"
            return
        if isinstance(error := event.get("error"), dict):
            request.error = str(error.get("code") or "error")
        if isinstance(usage := event.get("usage"), dict) and isinstance(usage.get("completion_tokens"), int):
            request.counted_tokens = usage["completion_tokens"]
        if any(_has_text(choice) for choice in event.get("choices") or ()):
            request.note_piece(now)
            progress.piece_counts[math.floor(now)] += 1


def _has_text(choice: Any) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    return isinstance(delta, dict) and bool(
        delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
    )


def _error_code(status: int, content: bytes) -> str:
    body = read_error(content)
    return f"http_{status}" if body is None else body.code


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
    if not is_terminal(sys.stderr):
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
