"""Runs engine jobs in threads and hands their results to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from worker.engine import Job
from worker.errors import EngineFailedError, JobCancelledError, RequestError
from worker.metrics import Counters

T = TypeVar("T")
Work = Callable[[Job], Iterator[T]]

log = logging.getLogger("worker")


class Run(Generic[T]):
    """One job, as an asynchronous iterator over the items that an engine thread makes. Create it with
    `Runner.start_run`, and use it in the event loop only.

    Iterating ends when the job's work is done. It raises RequestError, JobCancelledError or EngineFailedError of the
    work, and EngineFailedError for any other exception of it, which is logged.
    """

    def __init__(self, work: Work[T], counters: Counters) -> None:
        self.job = Job(counters)
        self._work = work
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[T | Exception] = asyncio.Queue()
        self._future: Future[None] | None = None
        self._cancelled = False

    def submit_job(self, threads: ThreadPoolExecutor) -> None:
        """Queue the job for a slot. `Runner.start_run` calls it, once."""
        self._counters.count_queued()
        self._future = threads.submit(self._execute)

    def cancel(self) -> None:
        """Stop the job. Iterating raises JobCancelledError after the items that are there already; the engine stops at
        its next check, and a job that still waits never begins. Call in the event loop; further calls, and one after
        the end, do nothing."""
        if self._cancelled:
            return
        self._cancelled = True
        self.job.cancel()
        if self._future is not None and self._future.cancel():
            self._counters.count_withdrawn()
        self._items.put_nowait(JobCancelledError())

    def __aiter__(self) -> Run[T]:
        return self

    async def __anext__(self) -> T:
        item = await self._items.get()
        if isinstance(item, Exception):
            self._items.put_nowait(item)  # further calls raise the same end
            raise item
        return item

    def _execute(self) -> None:
        self._counters.count_started()
        end: Exception = StopAsyncIteration()
        try:
            for item in self._work(self.job):
                self._deliver(item)
        except (RequestError, JobCancelledError, EngineFailedError) as error:
            end = error
        except Exception:
            log.exception("the engine failed")
            end = EngineFailedError("The engine failed; its log says why.")
        finally:
            self._counters.count_finished()
        self._deliver(end)

    def _deliver(self, item: T | Exception) -> None:
        self._loop.call_soon_threadsafe(self._items.put_nowait, item)


class Runner:
    """Runs jobs in as many threads as the engine has slots. Further jobs wait in order of arrival. Use it in the event
    loop only."""

    def __init__(self, slots: int, counters: Counters) -> None:
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="engine")
        self._counters = counters
        self._runs: set[Run[Any]] = set()
        self.stopping = False

    def start_run(self, work: Work[T]) -> Run[T]:
        """Queue a job and return its run. `work` is called in an engine thread, and iterated there.

        The caller checks `stopping` first, because nobody cancels a job that is started after `stop_runs`. The caller
        cancels the run when it no longer listens, and calls `forget_run` at the end.
        """
        run = Run(work, self._counters)
        self._runs.add(run)
        run.submit_job(self._threads)
        return run

    def forget_run(self, run: Run[T]) -> None:
        """Drop a run that its caller is done with. A run that has not ended is cancelled."""
        run.cancel()
        self._runs.discard(run)

    async def call_function(self, function: Callable[[], None]) -> None:
        """Wait until a function has run in an engine thread, where it takes a slot but is not counted in the metrics.
        Raises what the function raises. Used to load the model."""
        await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def stop_runs(self) -> None:
        """Cancel every job and set `stopping`: no job may be started afterwards. Does not wait for the engine."""
        self.stopping = True
        for run in tuple(self._runs):
            run.cancel()
