"""The settings of transfers, and what it gives up at its start. The process that gives it up is one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from transfers.__main__ import MEMORY_BYTES, OPEN_FILES
from transfers.settings import TransfersSettings


def settings(**values: Any) -> TransfersSettings:
    return TransfersSettings.model_validate(values)


def test_downloads_go_into_the_first_models_folder() -> None:
    assert settings(models="/a, /b").models_folder == Path("/a")
    assert settings(transfers_local_folders="/x,/y").local_folders == (Path("/x"), Path("/y"))
    assert settings().local_folders == ()


def test_the_token_of_the_hub_is_the_variables_or_the_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert settings(hub_token_file=file).read_hub_token() is None
    file.write_text("hf_0123456789abcdef\n")
    named = settings(hub_token_file=file)
    assert named.read_hub_token() == "hf_0123456789abcdef"
    file.write_text("hf_fedcba9876543210\n")
    assert named.read_hub_token() == "hf_fedcba9876543210"
    assert settings(hub_token=" hf_abc ", hub_token_file=file).read_hub_token() == "hf_abc"
    assert settings().read_hub_token() is None


def test_no_text_of_the_settings_has_the_token() -> None:
    assert "hf_secret" not in repr(settings(hub_token="hf_secret"))


@pytest.mark.parametrize(
    "values",
    [
        {"models": " , "},
        {"transfers_allow_hosts": "a/b"},
        {"hub_endpoint": "http://mirror.example"},
        {"hub_endpoint": "ftp://mirror.example"},
        {"hub_endpoint": "mirror"},
        {"transfers_ollama_registry": "http://10.0.0.1"},
        {"transfers_parallel": 0},
        {"transfers_keep_free_gb": -1},
    ],
)
def test_what_cannot_be_used_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**values)


def test_a_mirror_without_encryption_has_to_be_named() -> None:
    named = settings(hub_endpoint="http://mirror.example:81", transfers_allow_hosts="mirror.example:81")
    assert named.allowed.has("mirror.example", 81)


BECOME = """
import os, sys
from pathlib import Path
from transfers.__main__ import become_owner
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
from transfers.__main__ import limit_resources
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
