"""`python -m retrieval` as a process: what it refuses to start with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.campaigns.record import REPOSITORY


def refuse(**settings: str) -> tuple[int, str]:
    """Return the exit code and all that a program says which does not start."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    env = own | {f"ROUNDHOUSE_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "retrieval"]
    ended = subprocess.run(command, cwd=REPOSITORY, env=env, stderr=subprocess.PIPE, text=True, check=False)
    return ended.returncode, ended.stderr


def test_an_address_of_qdrant_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    refused = refuse(STATE=str(tmp_path), QDRANT_URL="http://user:secret@qdrant:port")
    line = "roundhouse retrieval: ROUNDHOUSE_QDRANT_URL: must be the address of a server, such as http://qdrant:6333\n"
    assert refused == (2, line)


def test_a_state_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = refuse(STATE=str(tmp_path / "file" / "state"))
    line = f"roundhouse retrieval: ROUNDHOUSE_STATE: {tmp_path}/file/state cannot be made: Not a directory\n"
    assert refused == (2, line)
