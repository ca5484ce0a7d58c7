"""Ends a child process together with the program that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Make the kernel send SIGKILL to this process when its parent ends, even during a call of Qdrant Edge, which no
    thread could interrupt. `parent`: the process id of the program that started this one. Raises SystemExit with code 1
    where that program has ended already. Linux only."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
