"""What the journal says of an edit."""

from __future__ import annotations

from pathlib import Path

from controller.config.debounce import DebouncedState
from controller.config.mcp_replicas import with_server_replicas
from controller.config.tools import DeclaredTools
from controller.journal.event_log import EventLog
from controller.journal.recorder import Recorder
from controller.redaction.redactor import redact_nothing
from controller.schema.journal import JournalEntry


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


def test_of_tools_and_servers_only_names_are_told(tmp_path: Path) -> None:
    before = DeclaredTools(
        declared_tools={"calculate": {}, "read_file": {"folder": "/srv/a"}, "same": {}},
        declared_servers={"a": {"url": "https://a/", "headers": {"X": "s3cr3t-one"}}, "gone": {"command": ["x"]}},
    )
    after = DeclaredTools(
        declared_tools={"current_time": {}, "read_file": {"folder": "/srv/b", "timeout_s": 5}, "same": {}},
        declared_servers={"a": {"url": "https://a/", "headers": {"X": "s3cr3t-two"}}, "new": {"env": {"K": "s3cr3t"}}},
    )
    journal = EventLog(tmp_path / "journal.db", keep=20)
    recorder = Recorder(journal, lambda: 1_000.0, redact_nothing)
    recorder.record_edits(DebouncedState({}, {}, tools=before), DebouncedState({}, {}, tools=after), {}, "files")
    entries = journal.read_page(("file",), None, None, 20)[::-1]
    journal.close()
    assert [entry.message for entry in entries] == [
        "the tool calculate is no longer declared",
        "the tool current_time is declared",
        "the tool read_file is edited: folder, timeout_s",
        "the MCP server a is edited: headers",
        "the MCP server gone is no longer declared",
        "the MCP server new is declared",
    ]
    assert entries[3].details == {"kind": "mcp_server", "name": "a", "change": "edited", "fields": ["headers"]}
    assert {entry.actor for entry in entries} == {"files"}
    assert not any("s3cr3t" in str(entry) for entry in entries)


def test_an_edit_of_a_server_that_the_controller_runs_is_told_once(tmp_path: Path) -> None:
    states = [
        with_server_replicas(
            DebouncedState({}, {}, tools=DeclaredTools(declared_servers={"time": {"command": [word]}}))
        )
        for word in ("old", "new")
    ]
    assert [each.declared_models["mcp:time"]["mcp_command"] for each in states] == [["old"], ["new"]]
    journal = EventLog(tmp_path / "journal.db", keep=20)
    recorder = Recorder(journal, lambda: 1_000.0, redact_nothing)
    recorder.record_edits(states[0], states[1], {}, "files")
    recorder.record_edits(states[0], states[1], {"mcp:time": ["unload"]}, "files")
    messages = [entry.message for entry in journal.read_page(("file",), None, None, 20)[::-1]]
    journal.close()
    assert messages == [
        "the MCP server time is edited: command",
        "edited: mcp_command; this ended its runtime statement",
        "the MCP server time is edited: command",
    ]
