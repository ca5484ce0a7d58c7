"""What `transfers` gives up at its start. The process that gives it up is one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transfers.confinement import MEMORY_BYTES, OPEN_FILES

BECOME = """
import os, sys
from pathlib import Path
from transfers.confinement import become_owner
become_owner(Path(sys.argv[1]), Path(sys.argv[2]))
Path(sys.argv[2], "made").touch()
Path(sys.argv[1], "made").touch()
try:
    os.setuid(0)
except PermissionError:
    pass
else:
    sys.exit("root came back")
print(os.getresuid(), os.getresgid(), os.getgroups())
"""
LIMITS = """
import resource
from transfers.confinement import limit_resources
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 600))
limit_resources()
print(*(resource.getrlimit(getattr(resource, name))
        for name in ("RLIMIT_AS", "RLIMIT_NOFILE", "RLIMIT_CORE")), sep=";")
"""


def run(script: str, *arguments: Path) -> str:
    """Run a script in a process of its own, and return what it prints. Raises AssertionError where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become somebody else")
def test_root_becomes_the_owner_of_the_models_folder_for_good(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o005 != 0o005 and folder != Path("/"):
            folder.chmod(0o755)
    models, token_folder = tmp_path / "models", tmp_path / "token"
    models.mkdir()
    token_folder.mkdir()
    (token_folder / "token").touch(0o600)
    os.chown(models, 4321, 8765)
    assert run(BECOME, models, token_folder) == "(4321, 4321, 4321) (8765, 8765, 8765) []"
    for path in (token_folder, token_folder / "token", token_folder / "made", models / "made"):
        assert (path.stat().st_uid, path.stat().st_gid) == (4321, 8765), path


@pytest.mark.skipif(os.geteuid() != 0, reason="the folder is root's where this runs as root")
def test_root_stays_for_a_folder_of_root(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    script = BECOME.replace('sys.exit("root came back")', "pass")
    assert run(script, models, tmp_path).startswith("(0, 0, 0)")


def test_limits_are_set_and_lower_ones_stay() -> None:
    assert OPEN_FILES > 600
    assert run(LIMITS).split(";") == [str((MEMORY_BYTES, MEMORY_BYTES)), "(600, 600)", "(0, 0)"]
