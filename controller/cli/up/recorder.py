"""Keeps `up.json` as the programs are that run, also where it cannot be written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from controller.cli.up.announce import Announcer
from controller.cli.up.record import RECORD_NAME, ProcessRecord, UpRecord, write_record


class ChildRecorder:
    """Records which programs this process has started. A record that cannot be written ends nothing: `down` finds the
    programs by their marks, too."""

    def __init__(self, state: Path, announcer: Announcer) -> None:
        """`announcer` is told once that records cannot be written, until one was written again."""
        self._state = state
        self._announcer = announcer
        self._is_recorded = True
        """Whether the last record could be written."""

    def record_children(self, pids: Mapping[str, int]) -> None:
        """Record the programs that run now. `pids`: program name to process id."""
        children = {name: record for name, pid in pids.items() if (record := ProcessRecord.of(pid)) is not None}
        try:
            write_record(self._state, UpRecord(up=ProcessRecord.of(os.getpid()), children=children))
        except OSError as error:
            if self._is_recorded:
                path, reason = self._state / RECORD_NAME, error.strerror or error
                self._announcer.print_note(f"what runs cannot be recorded in {path} ({reason}); `down` finds it")
            self._is_recorded = False
        else:
            self._is_recorded = True
