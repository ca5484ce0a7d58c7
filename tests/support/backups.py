"""A small installation on disk, and its backup."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cli.backup.manifest import Manifest
from cli.backup.restoring import RestoreFolders
from cli.backup.snapshot import BackupFolders, write_backup

FILES = {
    "identity.json": {"schema_version": 1, "instance": "abc", "secret": "00" * 32},
    "memory.json": {"schema_version": 1, "paused": True},
    "desired.json": {"schema_version": 1, "saved_at": 1, "models": {}, "keys": {}},
    "observed-memory.json": {"schema_version": 1, "kinds": []},
}


@dataclass(frozen=True)
class Installation:
    root: Path

    @property
    def state(self) -> Path:
        """The state folder, with responses.db."""
        return self.root / "state"

    @property
    def desired(self) -> Path:
        return self.root / "desired-state"

    @property
    def folders(self) -> RestoreFolders:
        """Both, as a restore wants them."""
        return RestoreFolders(self.state, self.state, self.desired, self.state)

    def content(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def back_up(self, path: Path) -> Manifest:
        folders = BackupFolders(self.desired, self.state, self.state, self.state)
        return write_backup(path, folders, 1_000_000.0, lambda: None)


ORIGINALS = {hashlib.sha256(content).hexdigest(): content for content in (b"A fox.", b"A dog.", b"x" * 5000)}


def add_documents(state: Path) -> Path:
    """A catalog of retrieval in a state folder, and ORIGINALS. Returns their folder."""
    folder = state / "retrieval"
    for sha256, content in ORIGINALS.items():
        path = folder / "originals" / sha256[:2] / sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "originals" / "incoming").mkdir()
    (folder / "originals" / "incoming" / "half").write_text("not for a backup")
    (folder / "edge").mkdir()
    _make_database(folder / "catalog.db")
    return folder


def _make_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE kept (what TEXT)")
        db.execute("INSERT INTO kept VALUES (?)", (path.name,))
        # As many rows as the catalog of retrieval would have; other databases have no use for them.
        db.execute("CREATE TABLE documents (id TEXT)")
        db.executemany("INSERT INTO documents VALUES (?)", [("a",), ("b",)])
        db.commit()


def make_installation(root: Path) -> Installation:
    installation = Installation(root)
    installation.state.mkdir(parents=True)
    installation.desired.mkdir()
    for name, content in FILES.items():
        (installation.state / name).write_text(json.dumps(content))
    for name in ("journal.db", "responses.db"):
        _make_database(installation.state / name)
    (installation.state / "logs").mkdir()
    (installation.state / "logs" / "engine.log").write_text("not for a backup")
    (installation.state / "epoch.json").write_text('{"schema_version": 1, "epoch": 7}')
    (installation.desired / "models.yaml").write_text("models: {a: {backend: stub}}")
    (installation.desired / "notes.txt").write_text("not read by anybody")
    return installation
