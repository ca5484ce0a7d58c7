"""A wrong wall clock for real Python processes, without a change of the host's.

`sitecustomize.py` beside this file, which Python imports at its start from `PYTHONPATH`, adds the number in a file to
`time.time` and `time.time_ns`, again whenever the file changes. It reaches child processes that inherit the variables.
Monotonic clocks, CLOCK_BOOTTIME, file times and `datetime.now` stay right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


class ShiftedClock:
    """The wall clock of the processes that are started with its `variables`."""

    def __init__(self, file: Path) -> None:
        """`file`: where the shift is kept. It begins with 0 s."""
        self._file = file
        self.set_shift(0)

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of a process that is to see the shift."""
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "SHIFTED_CLOCK_FILE": str(self._file)}

    def set_shift(self, seconds: float) -> None:
        """Let the wall clock jump: it is now `seconds` ahead of the right time; below 0: behind. A running process
        sees it within 20 ms."""
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds), encoding="ascii")
        new.replace(self._file)
