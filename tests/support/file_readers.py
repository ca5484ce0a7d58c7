"""A program in the place of the one that reads files: it takes a file, and never ends."""

from __future__ import annotations

import sys

import psutil

WAITS = (sys.executable, "-c", "import sys, threading; sys.stdin.read(); threading.Event().wait()")


def count_running() -> int:
    """How many of them this process has started and not ended."""
    return sum(_is_one(each) for each in psutil.Process().children())


def _is_one(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:] == list(WAITS[1:])
    except psutil.Error:  # it ends just now
        return False
