"""What the journal says of an edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.journal import JournalEntry
from controller.config.debounce import DebouncedState
from controller.config.runtime_declarations import with_server_replicas
from controller.config.validate import DeclaredTools
from controller.desired.differences import diff_keys
from controller.journal import EventLog, Recorder
from controller.redaction import redact_nothing


def recorded(
    root: Path, before: DebouncedState, after: DebouncedState, ends: dict[str, list[str]] | None = None
) -> list[JournalEntry]:
    """The entries of an edit, oldest first."""
    journal = EventLog(root / "journal.db", keep=20)
    Recorder(journal, lambda: 1_000.0, redact_nothing).record_edits(before, after, ends or {}, "files")
    entries = journal.read_page(("file",), None, None, 20)[::-1]
    journal.close()
    return entries


@pytest.mark.parametrize(
    ("ended", "words", "ended_statement"),
    [
        ([], "", False),
        (["unload"], "; this ended its runtime statement", True),
        (["stub_text", "vram_mib"], "; this ended stub_text, vram_mib of its load", False),
    ],
)
def test_an_edit_says_what_it_ended(tmp_path: Path, ended: list[str], words: str, ended_statement: bool) -> None:
    before, after = (DebouncedState({}, {"m": {"replicas": count}}) for count in (1, 2))
    [entry] = recorded(tmp_path, before, after, {"m": ended})
    assert (entry.model, entry.message) == ("m", f"edited: replicas{words}")
    assert (entry.details["ended_statement"], entry.details["ends"]) == (ended_statement, ended)


def test_of_tools_and_servers_only_names_are_recorded(tmp_path: Path) -> None:
    before = DeclaredTools(
        declared_tools={"calculate": {}, "read_file": {"folder": "/srv/a"}, "same": {}},
        declared_servers={"a": {"url": "https://a/", "headers": {"X": "s3cr3t-one"}}, "gone": {"command": ["x"]}},
    )
    after = DeclaredTools(
        declared_tools={"current_time": {}, "read_file": {"folder": "/srv/b", "timeout_s": 5}, "same": {}},
        declared_servers={"a": {"url": "https://a/", "headers": {"X": "s3cr3t-two"}}, "new": {"env": {"K": "s3cr3t"}}},
    )
    entries = recorded(tmp_path, DebouncedState({}, {}, tools=before), DebouncedState({}, {}, tools=after))
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
    assert "s3cr3t" not in str(entries)


def test_an_edit_of_a_server_that_the_controller_runs_is_recorded_once(tmp_path: Path) -> None:
    before, after = (
        with_server_replicas(
            DebouncedState({}, {}, tools=DeclaredTools(declared_servers={"time": {"command": [word]}}))
        )
        for word in ("old", "new")
    )
    assert [each.declared_models["mcp:time"]["mcp_command"] for each in (before, after)] == [["old"], ["new"]]
    edited = "the MCP server time is edited: command"
    assert [entry.message for entry in recorded(tmp_path, before, after)] == [edited]
    ended = recorded(tmp_path, before, after, {"mcp:time": ["unload"]})
    assert [entry.message for entry in ended[1:]] == [
        "edited: mcp_command; this ended its runtime statement", edited
    ]  # fmt: skip


def test_of_keys_only_names_are_recorded(tmp_path: Path) -> None:
    a, b = "a" * 64, "b" * 64
    same: dict[str, Any] = {"same": {"sha256": a}}
    before: dict[str, Any] = {"gone": {"sha256": a}, "ci": {"sha256": a, "weight": 2, "tenant": "t"}} | same
    after: dict[str, Any] = {"new": {"sha256": b}, "ci": {"sha256": b, "models": ["m"], "tenant": "t"}} | same
    assert [(each.key, each.change, each.fields) for each in diff_keys(before, after)] == [
        ("ci", "edited", ["models", "sha256", "weight"]),
        ("gone", "removed", ["sha256"]),
        ("new", "added", ["sha256"]),
    ]
    old, new = (DebouncedState({}, {}, declared_keys=keys) for keys in (before, after))
    entries = recorded(tmp_path, old, new)
    assert sorted(entry.message for entry in entries) == [
        "the key ci is edited: models, sha256, weight",
        "the key gone is no longer declared",
        "the key new is declared",
    ]
    assert {"key": "gone", "change": "removed", "fields": ["sha256"]} in [dict(entry.details) for entry in entries]
    assert not any(secret in str(entries) for secret in (a, b))
