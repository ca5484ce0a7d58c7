"""Completion as shells ask for it: in the environment of a run of the program."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from contract.admin import LoadConstraint
from contract.journal import EventKind
from tests.fakes.fake_control_api import FakeControlApi, row
from tests.support.cli import PROGRAM

pytestmark = pytest.mark.slow


@pytest.fixture
def api(api: FakeControlApi) -> FakeControlApi:
    api.rows = [row("chat"), row("code", "unloaded"), row("org/chat")]
    return api


async def completed(line: str, **environment: str) -> tuple[list[str], str]:
    """What bash would be offered at the end of the line, and what would be said on stderr."""
    words = line.split(" ")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    completion = {"_ROUNDHOUSE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    env = {**inherited, **completion, **environment}
    done = await asyncio.to_thread(subprocess.run, [PROGRAM], capture_output=True, text=True, env=env, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize("command", ["load", "unload", "reset", "logs", "history"])
async def test_names_of_models_are_completed(api: FakeControlApi, command: str) -> None:
    url = {"ROUNDHOUSE_CONTROLLER_URL": api.url}
    assert await completed(f"roundhouse {command} c", **url) == (["chat", "code"], "")
    assert await completed(f"roundhouse {command} org/", **url) == (["org/chat"], "")
    assert await completed(f"roundhouse {command} --controller {api.url} ch") == (["chat"], "")
    assert await completed("roundhouse key new ci --model c", **url) == (["chat", "code"], "")


async def test_fields_that_a_load_may_set(api: FakeControlApi) -> None:
    fields = {name: LoadConstraint(kind="integer") for name in ("gguf_n_ctx", "gguf_n_batch", "replicas_of")}
    api.rows = [row("chat", load_constraints=fields, aliases=["c"]), row("code")]
    load = f"roundhouse load --controller {api.url}"
    assert await completed(f"{load} chat --set ") == ([f"{name}=" for name in fields], "")
    assert await completed(f"{load} c --replicas 2 --set gguf_n_b") == (["gguf_n_batch="], "")
    assert await completed(f"{load} chat --set gguf_n_ctx=8 --set gguf_n_c") == (["gguf_n_ctx="], "")
    for line in (f"{load} code --set ", f"{load} none --set ", f"{load} --set ", f"{load} chat --set gguf_n_ctx=8"):
        assert await completed(line) == ([], "")


async def test_the_state_folder_says_where_the_controller_is(api: FakeControlApi, folder: Path) -> None:
    assert await completed(f"roundhouse load --state {folder} co") == (["code"], "")
    assert await completed(f"roundhouse events --state {folder} --model co") == (["code"], "")


async def test_without_a_controller_nothing_is_offered_and_nothing_said(folder: Path) -> None:
    assert await completed(f"roundhouse load --state {folder} c") == ([], "")
    assert await completed("roundhouse load --controller nonsense c") == ([], "")
    assert await completed("roundhouse load c", ROUNDHOUSE_STOP_TIMEOUT_S="soon") == ([], "")


async def test_commands_options_and_kinds() -> None:
    assert await completed("roundhouse un") == (["unload", "undrain"], "")
    assert await completed("roundhouse load --rep") == (["--replicas"], "")
    assert sorted((await completed("roundhouse events --kind "))[0]) == sorted(get_args(EventKind))
    assert await completed("roundhouse key ") == (["new", "ls", "revoke"], "")
    assert await completed("roundhouse key new ci --scope ") == (["inference", "admin"], "")
    assert await completed("roundhouse key new ci --tier de") == (["default"], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str, tmp_path: Path) -> None:
    # What asks for the script finds its shell by the process that started it.
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}

    def run(option: str) -> str:
        command = [str(PROGRAM), option, shell]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout

    assert f"complete_{shell}" in run("--show-completion")
    run("--install-completion")
    installed = [path for path in tmp_path.rglob("*roundhouse*") if path.is_file()]
    assert [f"complete_{shell}" in path.read_text() for path in installed] == [True]
