"""Main memory of a replica's processes."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from controller.runtimes.process.stat import Process, read_stat

_MIB = 2**20


def process_host_mib(processes: Iterable[Process]) -> int | None:
    """MiB that the processes hold together, mapped model files included; None: none of them can be looked at.

    What they share counts once (PSS). But not less than the largest of them holds (RSS): the half of a model file that
    another replica has mapped as well is needed in full, once that one is gone.
    """
    pss_bytes, largest_rss = 0, 0
    for process in processes:
        rss, pss = _held_bytes(process)
        pss_bytes, largest_rss = pss_bytes + pss, max(largest_rss, rss)
    return -(-max(pss_bytes, largest_rss) // _MIB) or None


def _held_bytes(process: Process) -> tuple[int, int]:
    """Bytes of RSS and PSS; zeros: it has ended, or it is not ours to look at."""
    try:
        ps_process = psutil.Process(process.pid)
        try:
            memory = ps_process.memory_full_info()
            rss, pss = memory.rss, memory.pss
        except psutil.AccessDenied:
            rss = pss = ps_process.memory_info().rss
    except (psutil.Error, OSError):
        return 0, 0
    stat = read_stat(process.pid)
    return (rss, pss) if stat is not None and stat.process == process else (0, 0)
