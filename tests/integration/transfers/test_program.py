"""`python -m transfers` as a process: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from common.health_check import find_problem
from common.internal_tokens import TRANSFERS_TOKEN
from common.shared_token import read_token
from tests.campaigns.record import REPOSITORY
from tests.support.ports import free_port
from tests.support.transfers_harness import wait_for
from transfers.models_folder import ModelsFolder

SECRET = "hf_a_secret_of_the_operator"


def start(**settings: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "transfers"],
        cwd=REPOSITORY,
        env=own | {f"ROUNDHOUSE_{name}": value for name, value in settings.items()},
        stderr=subprocess.PIPE,
        text=True,
    )


def refuse(**settings: str) -> tuple[int, str]:
    """Return the exit code and the last line of a program that does not start."""
    process = start(**settings)
    _, words = process.communicate(timeout=60)
    assert "Traceback" not in words
    return process.returncode, words.strip().splitlines()[-1]


def test_it_listens_with_a_token_and_ends_when_asked(tmp_path: Path) -> None:
    address, token_file = f"127.0.0.1:{free_port()}", tmp_path / "run" / "token"
    process = start(
        MODELS=str(tmp_path / "models"),
        TRANSFERS_LISTEN=address,
        TRANSFERS_TOKEN_FILE=str(token_file),
        HUB_TOKEN=SECRET,
        LOG_LEVEL="debug",
    )
    try:
        wait_for(
            "health",
            lambda: find_problem("ROUNDHOUSE_TRANSFERS_LISTEN", {"ROUNDHOUSE_TRANSFERS_LISTEN": address}) is None,
        )
        token = read_token(token_file)
        assert token is not None
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}/downloads", timeout=10)
        assert caught.value.code == 401
        request = urllib.request.Request(f"http://{address}/downloads", headers={TRANSFERS_TOKEN.header: token})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.read() == b'{"downloads":[]}'
    finally:
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=60)
    assert process.returncode == 0, words
    assert str(tmp_path / "models") in words
    assert SECRET not in words
    assert token not in words


def test_what_it_cannot_start_with_is_told_in_one_line(tmp_path: Path) -> None:
    models = tmp_path / "models"
    socket = f"unix:{tmp_path}/transfers.sock"
    code, words = refuse(MODELS=str(models), TRANSFERS_LISTEN=socket, TRANSFERS_ALLOW_HOSTS="a/b")
    assert (code, "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS" in words) == (2, True)
    folder = ModelsFolder(models, 0)
    folder.open("process 7, which listens on unix:there")
    try:
        code, words = refuse(MODELS=str(models), TRANSFERS_LISTEN=socket)
        assert (code, str(models) in words) == (4, True)
        assert "another Roundhouse (process 7, which listens on unix:there)" in words
        assert "set ROUNDHOUSE_DOWNLOADS=off" in words
    finally:
        folder.close()
    (tmp_path / "file").touch()
    code, words = refuse(MODELS=str(tmp_path / "file"), TRANSFERS_LISTEN=socket)
    assert (code, str(tmp_path / "file") in words) == (1, True)
    code, words = refuse(MODELS=str(models), TRANSFERS_LISTEN=f"unix:{tmp_path}/no/such/folder.sock")
    assert (code, "cannot listen" in words) == (3, True)


def test_a_health_check_says_what_is_wrong() -> None:
    variable = "ROUNDHOUSE_TRANSFERS_LISTEN"
    assert find_problem(variable, {}) is not None
    assert "socket" in str(find_problem(variable, {variable: "unix:/x"}))
    assert "no answer" in str(find_problem(variable, {variable: f"127.0.0.1:{free_port()}"}))
