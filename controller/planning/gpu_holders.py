"""Who holds memory of a GPU that should be free. Pure."""

from __future__ import annotations

from collections.abc import Collection

from controller.state import Gpu, GpuProcess

NAMED = 3
"""Processes that are named; the others are counted."""


def held_by(gpu: Gpu, staying: Collection[str], *, expected_mib: int = 0) -> str | None:
    """Which processes hold memory there, beside those of the replicas `staying`; None: none does.

    Where the driver names no processes, it is what is in use beyond `expected_mib`, without a name.
    """
    if gpu.processes is None:
        beyond = gpu.used_mib - expected_mib
        return f"{beyond} MiB, by processes that the driver does not name here" if beyond > 0 else None
    others = [process for process in gpu.processes if process.replica is None or process.replica not in staying]
    if not others:
        return None
    words = [_words(process) for process in others[:NAMED]]
    if len(others) > NAMED:
        words.append(f"{len(others) - NAMED} more")
    return "; ".join(words)


def _words(process: GpuProcess) -> str:
    name = f"process {process.pid}" if process.name is None else f"process {process.pid} ({process.name})"
    owner = "not of this Roundhouse" if process.replica is None else f"of {process.replica}"
    size = "an unknown part" if process.mib is None else f"{process.mib} MiB"
    return f"{name}, {owner}: {size}"
