"""Names a process so that another program of the same machine can see whether it still runs, and has memory that it has
freed given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final, TypeVar

PROC: Final = Path("/proc")
MAPPED_BYTES: Final = 1024 * 1024
"""Blocks of memory from this size on are given back when they are freed. Smaller ones come and go too often."""
_M_MMAP_THRESHOLD: Final = -3
"""Number of a parameter of `mallopt`, see its manual page."""


def read_boot_id() -> str:
    """Return the id that the kernel drew at the machine's boot. Raises OSError where the system names no boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_host() -> str | None:
    """Return where this program's process ids mean something: the boot of the machine, and the PID namespace. Two
    programs with the same text see each other's processes under the same ids. None: the system does not tell."""
    try:
        return f"{read_boot_id()} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return None


def read_own_start() -> int | None:
    """Return this process's start in clock ticks since boot (/proc/PID/stat, field 22): with its id, it names the
    process for as long as the machine runs. None: the system does not tell."""
    try:
        text = (PROC / str(os.getpid()) / "stat").read_bytes()
    except OSError:
        return None
    # The command's name is in parentheses, and may itself contain parentheses.
    return int(text[text.rindex(b")") + 2 :].split()[19])


def return_freed_memory() -> None:
    """Have glibc give each block of `MAPPED_BYTES` or more back to the system when it is freed, and the end of a heap
    when it is free. By default it keeps ever larger blocks (up to 32 MiB), and what is freed around them: a program
    that has had large bodies or documents grows for hours. Call once, at the start of each program that serves. Does
    nothing with another C library."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


E = TypeVar("E", bound=BaseException)


def without_tracebacks(error: E) -> E:
    """Remove the tracebacks of an error, its causes and its contexts, in place. Return the same error.

    A frame with the error in a variable makes a cycle with the error's traceback. Only the cyclic garbage collector
    frees that cycle and all that the frames hold, such as a request's body, and the gateway runs it rarely.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            pending += (each.__cause__, each.__context__)
    return error
