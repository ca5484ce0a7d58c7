"""What the journal says of an edit."""

from __future__ import annotations

from pathlib import Path

from controller.config.debounce import DebouncedState
from controller.journal.event_log import EventLog
from controller.journal.recorder import Recorder
from controller.redaction.redactor import redact_nothing
from controller.schema.admin import JournalEntry


def _told(root: Path, ended: list[str]) -> JournalEntry:
    journal = EventLog(root / "journal.db", keep=10)
    recorder = Recorder(journal, lambda: 1_000.0, redact_nothing)
    recorder.record_edits(
        DebouncedState({}, {"m": {"replicas": 1}}), DebouncedState({}, {"m": {"replicas": 2}}), {"m": ended}, "files"
    )
    [entry] = journal.read_page(("file",), "m", None, 10)
    journal.close()
    return entry


def test_an_edit_that_ends_nothing(tmp_path: Path) -> None:
    entry = _told(tmp_path, [])
    assert entry.message == "edited: replicas"
    assert (entry.details["ended_statement"], entry.details["ends"]) == (False, [])


def test_an_edit_that_ends_a_statement(tmp_path: Path) -> None:
    entry = _told(tmp_path, ["unload"])
    assert entry.message == "edited: replicas; this ended its runtime statement"
    assert (entry.details["ended_statement"], entry.details["ends"]) == (True, ["unload"])


def test_an_edit_that_ends_fields_of_a_load(tmp_path: Path) -> None:
    entry = _told(tmp_path, ["stub_text", "vram_mib"])
    assert entry.message == "edited: replicas; this ended stub_text, vram_mib of its load"
    assert (entry.details["ended_statement"], entry.details["ends"]) == (False, ["stub_text", "vram_mib"])
