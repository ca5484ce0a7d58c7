"""Measures the main memory of a replica's processes."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from controller.runtimes.process.stat import Process, read_stat

_MIB = 2**20


def process_host_mib(processes: Iterable[Process]) -> int | None:
    """Return the MiB of main memory that the processes hold together, including mapped model files.

    None if none of the processes can be read; never 0. Memory that they share counts once (PSS). But the result is at
    least the memory (RSS) of the largest process: PSS counts a model file only in part if another replica has mapped it
    too, and the replica needs all of it once the other one is gone. Blocks.
    """
    pss_bytes, largest_rss = 0, 0
    for process in processes:
        rss, pss = _held_bytes(process)
        pss_bytes, largest_rss = pss_bytes + pss, max(largest_rss, rss)
    return -(-max(pss_bytes, largest_rss) // _MIB) or None


def _held_bytes(process: Process) -> tuple[int, int]:
    """Return RSS and PSS in bytes; zeros if the process has ended or may not be read."""
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
