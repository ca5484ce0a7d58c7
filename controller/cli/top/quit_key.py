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
    """Context manager that sets `quit_event` when `q` or `Q` is typed, inside the context. Yields whether stdin is a
    terminal at which somebody can type; if not, nothing is watched. Needs a running event loop.

    Inside the context, the terminal delivers keys without Enter and does not show them; its modes are restored at the
    end. Ctrl-C works as usual.
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
    """Return whether stdin is a terminal whose input goes to this program."""
    if not sys.stdin or not sys.stdin.isatty():
        return False
    try:
        # The kernel stops a background process that changes the terminal's modes.
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal without job control for this program
        return True
