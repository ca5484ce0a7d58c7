"""The key that ends `roundhouse top`."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

QUIT_KEYS: Final = frozenset(b"qQ")


@contextmanager
def watch_quit_key(quit_event: asyncio.Event) -> Iterator[bool]:
    """Set the event when `q` is typed at the terminal that stdin is; whether there is one to type at.

    Within, keys are read without Enter and are not shown; Ctrl-C is what it always is.
    """
    if not _is_typed_at():
        yield False
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read_keys() -> None:
        try:
            keys = os.read(descriptor, 1024)
        except OSError:
            keys = b""
        if not keys:  # the terminal is gone
            loop.remove_reader(descriptor)
        elif not QUIT_KEYS.isdisjoint(keys):
            quit_event.set()

    modes = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read_keys)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


def _is_typed_at() -> bool:
    """Whether stdin is a terminal, and what is typed there is meant for this program."""
    if not sys.stdin or not sys.stdin.isatty():
        return False
    try:
        # Who is in the background and changes a terminal's modes is stopped.
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal without job control for this program
        return True
