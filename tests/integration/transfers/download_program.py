"""A download in a process of its own, which can be killed: `python -m ... MODELS ENDPOINT REFERENCE [KIND STEP]`.

It prints `begun`, and the state and the error at the end. With KIND and STEP it kills itself before that change of
files, counted from 0. KIND is `any` (each opening for writing, each new folder, move, truncation and removal) or `move`
(moves and removals alone, which are most at the end of a download).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.transfers_harness import open_site

MOVES = frozenset({"os.link", "os.remove", "os.rename", "os.rmdir"})
CHANGES = MOVES | {"os.mkdir", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def kill_at(kind: str, step: int) -> None:
    """Kill this process at a change of files."""
    counter = itertools.count()

    def is_change(event: str, args: tuple[Any, ...]) -> bool:
        if kind == "move":
            return event in MOVES
        return event in CHANGES or (event == "open" and isinstance(args[2], int) and bool(args[2] & WRITES))

    def look(event: str, args: tuple[Any, ...]) -> None:
        if is_change(event, args) and next(counter) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def main() -> None:
    """Download, and say how it ended."""
    models, endpoint, reference, *step = sys.argv[1:]
    if step:
        kill_at(step[0], int(step[1]))
    with open_site(Path(models), endpoint) as site:
        print("begun", flush=True)
        found = site.pull(reference)
        print(found.state, "" if found.error is None else found.error.message, flush=True)


if __name__ == "__main__":
    main()
