"""Runs ExLlamaV3's generator, which works on many jobs at once, in a thread of its own."""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from typing import Any, Final

Answers = queue.SimpleQueue[Any]
"""Results of one job, or the exception that ended it. The queue is also the job's `identifier`."""

LOOK_S: Final = 0.1
"""Seconds between two checks whether a job that yields no result is still wanted."""


class Batch:
    """Owns the only thread that uses an ExLlamaV3 generator, which is not thread-safe. Creating it starts the thread,
    which runs as long as the process.

    An error of the generator itself ends the whole process, with exit code 1 and one line on stderr.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._requested_actions: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="exllamav3", daemon=True).start()

    def iterate_results(self, make: Callable[[Answers], Any], check: Callable[[], None]) -> Generator[dict[str, Any]]:
        """Queue the job that `make` builds, and yield its results as the generator makes them, until one has `eos` set.
        Blocks between results. May be called from any thread; jobs of several callers run at once.

        `make` gets the queue that must be the job's `identifier`. While no result comes, `check` is called every LOOK_S
        seconds; it may raise. Raises what the generator raised for this job, or what `check` raised. If `check` raised,
        or the iterator is closed early, the job is cancelled.
        """
        answers: Answers = queue.SimpleQueue()
        job = make(answers)
        self._requested_actions.put((self._generator.enqueue, job))
        has_ended = False
        try:
            while not has_ended:
                try:
                    result = answers.get(timeout=LOOK_S)
                except queue.Empty:
                    check()
                    continue
                has_ended = isinstance(result, Exception) or result["eos"]
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            if not has_ended:
                self._requested_actions.put((self._generator.cancel, job))

    def _run(self) -> None:
        try:
            while True:
                self._run_requests()
                for result in self._generator.iterate():
                    result["job"].identifier.put(result.get("error", result))
        except Exception as error:  # noqa: BLE001 - the generator is of no more use, whatever it was
            traceback.print_exc()
            sys.stderr.write(f"ExLlamaV3 failed: {error!r}\n")
            sys.stderr.flush()
            os._exit(1)

    def _run_requests(self) -> None:
        is_idle = not self._generator.num_remaining_jobs()
        while True:
            try:
                action, job = self._requested_actions.get(block=is_idle)
            except queue.Empty:
                return
            try:
                action(job)
            except (AssertionError, ValueError) as error:  # the generator refuses this one job
                job.identifier.put(error)
            is_idle = not self._generator.num_remaining_jobs()
