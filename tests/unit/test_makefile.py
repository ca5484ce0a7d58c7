"""`make`, the launcher that it installs, and .ci/docker."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.runtimes.process.groups import read_stat
from tests.support.wait import until

REPOSITORY = Path(__file__).parents[2]
FAKE_PYTHON = """#!/bin/bash
case "$*" in
*"-m venv"*)
  mkdir -p "${@: -1}/bin"
  cp "$0" "${@: -1}/bin/python"
  printf '#!/bin/bash\\necho "desired=$ROUNDHOUSE_DESIRED state=$ROUNDHOUSE_STATE models=$ROUNDHOUSE_MODELS: $*"\\n' \\
    >"${@: -1}/bin/roundhouse"
  chmod +x "${@: -1}/bin/roundhouse" ;;
*--require-hashes*)
  for number in $(seq 45); do
    echo "Collecting package$number==1.0 (from -r requirements/all.txt (line $number))"
  done
  echo "Installing collected packages: package1"
  ${FAKE_PIP_FAILS:+eval 'echo "ERROR: no such hash" >&2; exit 1'} ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with what `make install` reads, in a folder whose name a shell would split."""
    folder = tmp_path / "a 'checkout"
    (folder / "requirements").mkdir(parents=True)
    shutil.copy(REPOSITORY / "Makefile", folder)
    for name in ("requirements/all.txt", "pyproject.toml"):
        (folder / name).touch()
    python = tmp_path / "fake-python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return folder


def make(checkout: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    # What the make that runs the tests was told, ARGS among it, is not for this one.
    foreign = ("MAKE", "MFLAGS", "ARGS", "ROUNDHOUSE_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    home = checkout.parent / "home"
    command = ["make", *arguments, f"PYTHON={checkout.parent / 'fake-python'}"]
    return subprocess.run(
        command, cwd=checkout, env={**own, "HOME": str(home), **env}, capture_output=True, text=True, check=False
    )


def up_command(done: subprocess.CompletedProcess[str]) -> str:
    """The line of a dry run that starts `up`."""
    [line] = [line for line in done.stdout.splitlines() if "roundhouse up" in line]
    return " ".join(line.split())


def test_the_port_is_said_on_makes_command_line(checkout: Path) -> None:
    command = "exec .venv/bin/roundhouse up --runtime process"
    assert up_command(make(checkout, "-n", "up", "PORT=9000")) == f"{command} --port 9000"
    assert up_command(make(checkout, "-n", "up", "ARGS=--json")) == f"{command} --json"
    assert up_command(make(checkout, "-n", "up", PORT="3000")) == command, "some other program's"


def test_the_demo_model_is_made_where_up_looks_for_models(checkout: Path) -> None:
    def is_made(arguments: str = "", **env: str) -> bool:
        return "worker.clockwork" in make(checkout, "-n", "up", f"ARGS={arguments}", **env).stdout

    assert is_made()
    assert is_made("--json --models ./models")
    assert is_made("--models=/elsewhere,models --json")
    assert not is_made("--models /elsewhere --state /elsewhere/state")
    assert not is_made(ROUNDHOUSE_MODELS="/elsewhere")
    assert is_made("--models models", ROUNDHOUSE_MODELS="/elsewhere")


def test_the_installation_says_how_far_it_is(checkout: Path) -> None:
    done = make(checkout, "install")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "roundhouse: installing into .venv (all); it takes one to five minutes",
        "roundhouse: 20 packages found",
        "roundhouse: 40 packages found",
        "roundhouse: unpacking 45 packages",
    ]


def test_an_installation_that_fails_says_why(checkout: Path) -> None:
    done = make(checkout, "install", FAKE_PIP_FAILS="1")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "roundhouse: the installation failed: ERROR: no such hash (all of it: .venv/install.log)"
    )
    assert not (checkout / ".venv" / ".installed").exists()


def test_the_launcher_runs_this_checkout_from_any_folder(checkout: Path, tmp_path: Path) -> None:
    done = make(checkout, "install-launcher")
    launcher = tmp_path / "home" / ".local" / "bin" / "roundhouse"
    assert (done.returncode, done.stderr) == (0, "")
    assert f"roundhouse: {launcher} runs .venv/bin/roundhouse of {checkout}" in done.stdout
    assert f"your PATH lacks {launcher.parent}" in done.stdout
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}

    def said(**env: str) -> str:
        command = [str(launcher), "status", "--json"]
        return subprocess.run(command, cwd="/", env={**own, **env}, capture_output=True, text=True, check=True).stdout

    assert said() == (
        f"desired={checkout}/desired-state state={checkout}/state models={checkout}/models: status --json\n"
    )
    assert f"state=/elsewhere models={checkout}/models:" in said(ROUNDHOUSE_STATE="/elsewhere")


def test_the_launcher_is_written_anew_and_replaces_nothing_else(checkout: Path, tmp_path: Path) -> None:
    launcher = tmp_path / "home" / ".local" / "bin" / "roundhouse"
    assert make(checkout, "install-launcher").returncode == 0
    again = make(checkout, "install-launcher", PATH=f"{launcher.parent}:{os.environ['PATH']}")
    assert again.returncode == 0
    assert "PATH lacks" not in again.stdout
    launcher.write_text("mine")
    refused = make(checkout, "install-launcher")
    assert refused.returncode != 0
    assert f"roundhouse: {launcher} is something else, and stays; remove it first" in refused.stderr
    assert launcher.read_text() == "mine"


def test_every_target_is_in_the_list(checkout: Path) -> None:
    done = make(checkout, "help")
    assert [line.split()[1] for line in done.stdout.splitlines()][:4] == ["help", "up", "install", "install-launcher"]


SCRIPT = Path(__file__).parents[2] / ".ci" / "docker"


@pytest.fixture
def ended_dockerd(tmp_path: Path) -> Iterator[int]:
    """The pid of a `dockerd` that nobody reaps."""
    program = shutil.which("true")
    assert program is not None
    shutil.copy(program, tmp_path / "dockerd")
    with subprocess.Popen([tmp_path / "dockerd"]) as child:
        yield child.pid


async def test_a_zombie_is_no_running_dockerd(ended_dockerd: int, tmp_path: Path) -> None:
    await until("it is a zombie", lambda: (stat := read_stat(ended_dockerd)) is not None and stat.has_ended)
    note = tmp_path / "note"
    note.write_text(f"{ended_dockerd}\n{tmp_path / 'folder'}\n")
    stop = await asyncio.create_subprocess_exec(SCRIPT, "stop", note)
    try:
        async with asyncio.timeout(30):
            assert await stop.wait() == 0
    finally:
        if stop.returncode is None:
            stop.kill()
            await stop.wait()
    assert not note.exists()
