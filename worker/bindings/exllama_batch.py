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
    """Owns the only thread that uses the generator, which is not thread-safe."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._requested_actions: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="exllamav3", daemon=True).start()

    def iterate_results(self, make: Callable[[Answers], Any], check: Callable[[], None]) -> Generator[dict[str, Any]]:
        """Queue the job that `make` builds, and yield its results. While none comes, `check` is called, which may
        raise.

        Raises what the generator raised for the job, or what `check` raised. In the latter case, and when the iterator
        is closed early, the job is cancelled.
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
