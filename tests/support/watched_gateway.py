"""A gateway that tells on SIGUSR1 what its memory is made of.

    python -m tests.support.watched_gateway OUT [TRACE]     as `python -m gateway`; SIGUSR1 appends a line to OUT

With TRACE, a folder, it also traces allocations, and leaves there what it has allocated by place, its objects by type,
and those that only the cyclic collector could free. That costs memory and time and lets the collector run, so that the
figures of such a run are no measure.
"""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from gateway.__main__ import main
from tests.support.memory import name_of

FRAMES = 12
"""Of each allocation."""
MOST_TYPES = 300


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        ("arena", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 6),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


def _find_mallinfo() -> Any:
    look = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if look is not None:
        look.restype = _Mallinfo
    return look


_mallinfo = _find_mallinfo()
"""None: the C library is no glibc, or an old one."""


def heap() -> dict[str, int]:
    """Bytes of the C library's main heap: taken from the system, used, free; empty where it does not tell."""
    if _mallinfo is None:
        return {}
    found = _mallinfo()
    return {"heap": found.arena, "heap_used": found.uordblks, "heap_free": found.fordblks}


class Watch:
    """Writes a line each time, and a snapshot where that is asked for."""

    def __init__(self, out: Path, trace: Path | None) -> None:
        """`trace` None: nothing is traced."""
        self._out = out
        self._trace = trace
        self._number = 0

    def look(self, _number: int, _frame: FrameType | None) -> None:
        """Append what is seen now."""
        stats = gc.get_stats()
        seen = {
            "blocks": sys.getallocatedblocks(),
            "tracked": gc.get_count()[0],
            "rounds": [each["collections"] for each in stats],
            "collected": sum(each["collected"] for each in stats),
            **heap(),
        }
        if self._trace is not None:
            self._number += 1
            state = {"garbage": _garbage(), "objects": _by_type(gc.get_objects())}
            (self._trace / f"{self._number:03}.json").write_text(json.dumps(state))
            tracemalloc.take_snapshot().dump(str(self._trace / f"{self._number:03}.snapshot"))
        with self._out.open("a") as out:
            out.write(json.dumps(seen) + "\n")


def _garbage() -> dict[str, int]:
    """What only the cyclic collector can free, by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = _by_type(gc.garbage)
    gc.garbage.clear()
    gc.collect()
    return found


def _by_type(objects: list[Any]) -> dict[str, int]:
    return dict(Counter(map(name_of, objects)).most_common(MOST_TYPES))


if __name__ == "__main__":
    trace_folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if trace_folder is not None:
        trace_folder.mkdir(parents=True, exist_ok=True)
        tracemalloc.start(FRAMES)
    signal.signal(signal.SIGUSR1, Watch(Path(sys.argv[1]), trace_folder).look)
    sys.exit(main())
