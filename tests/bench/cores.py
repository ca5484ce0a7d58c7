"""Processor cores of what is measured, so that the load and the engine do not take its time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator


@contextlib.contextmanager
def with_own_core(*measured: int, others: Collection[int] = ()) -> Iterator[None]:
    """Let the measured processes (ids) have one core for themselves while the block runs; they share it.

    This process, `others`, and what this process starts meanwhile run on the other cores. Without a second core,
    nothing is changed.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    for pid in measured:
        os.sched_setaffinity(pid, cores[:1])
    for pid in (*others, 0):
        os.sched_setaffinity(pid, cores[1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
