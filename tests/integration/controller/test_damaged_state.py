"""A controller that is started with a state folder whose files cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["epoch.json", "memory.json"])
def test_a_damaged_file_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ROUNDHOUSE_")}
    settings = {
        "ROUNDHOUSE_STATE": str(tmp_path),
        "ROUNDHOUSE_RUNTIME": "process",
        "ROUNDHOUSE_LISTEN": f"unix:{tmp_path / 'controller.sock'}",
        "ROUNDHOUSE_DESIRED": str(tmp_path),
        "ROUNDHOUSE_MODELS": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "controller"]
    done = subprocess.run(command, env=clean | settings, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"roundhouse controller: {tmp_path / name}")
