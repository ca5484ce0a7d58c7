"""`up` and the page: when it is built, what the build gets to see, what is said, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio import SubprocessProtocol
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from controller.cli.up.announce import Announcer
from controller.cli.up.page_build import BUILD_SCRIPT, PageBuild, build_variables, is_wanted
from tests.support.wait import until

URL = "http://127.0.0.1:8080"
SERVED = {"event": "page", "message": f"The page is at {URL}/", "url": f"{URL}/"}
BUILDS = "roundhouse: the page is built in the background, at low priority; models are served\n"


def script(folder: Path, text: str) -> Path:
    """A build of another kind; `$3` is what it is asked for."""
    made = folder / "build"
    made.write_text(f"#!/bin/sh\n{text}\n")
    made.chmod(0o755)
    return made


def build(made: Path, environ: Mapping[str, str] = os.environ) -> PageBuild:
    return PageBuild(URL, Announcer(as_json=True), environ, made)


def test_a_checkout_builds_its_page() -> None:
    assert BUILD_SCRIPT.is_file()
    assert is_wanted({})
    assert is_wanted({"ROUNDHOUSE_PAGE": "on"})


@pytest.mark.parametrize("word", ["off", "false", "0", "No", "OFF", "n", "f"])
def test_a_page_that_is_off_is_not_built(word: str) -> None:
    assert not is_wanted({"ROUNDHOUSE_PAGE": word})


def test_a_page_of_somebody_elses_and_an_installed_wheel_build_none(tmp_path: Path) -> None:
    assert not is_wanted({"ROUNDHOUSE_PAGE_FOLDER": "/srv/page"})
    assert not is_wanted({}, tmp_path / "web" / "build")


def test_the_build_sees_what_reaches_a_registry_and_no_secret() -> None:
    needed = {"PATH": "/bin", "HOME": "/h", "PIP_INDEX_URL": "x", "npm_config_registry": "y", "HTTPS_PROXY": "z"}
    secret = {"ROUNDHOUSE_HUB_TOKEN_FILE": "t", "OPENAI_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert build_variables(needed | secret) == needed


async def test_a_page_that_is_built_is_served_without_a_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = script(tmp_path, f'echo "$3" >>{tmp_path}/asked')
    await build(made).run()
    said = capfd.readouterr()
    assert (json.loads(said.out), said.err) == (SERVED, "")
    assert (tmp_path / "asked").read_text() == "--is-current\n"


async def test_a_page_that_is_old_is_built_in_the_background(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = script(tmp_path, f'echo "$3" >>{tmp_path}/asked; [ "$3" != --is-current ] || {{ echo old >&2; exit 1; }}')
    await build(made).run()
    said = capfd.readouterr()
    assert (json.loads(said.out), said.err) == (SERVED, BUILDS)
    assert (tmp_path / "asked").read_text() == "--is-current\n--background\n"


async def test_a_build_that_fails_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = script(tmp_path, "echo one >&2; echo 'roundhouse: the page was not built: no network' >&2; exit 1")
    await build(made).run()
    assert capfd.readouterr() == ("", f"{BUILDS}roundhouse: the page was not built: no network\n")


async def test_a_build_that_says_nothing_and_one_that_cannot_start_are_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = script(tmp_path, "exit 3")
    await build(made).run()
    assert capfd.readouterr().err == f"{BUILDS}roundhouse: the page was not built: {made} ended with status 3\n"
    await build(tmp_path / "none").run()
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("roundhouse: the page was not built: ")


BUILDS_FOR_EVER = '[ "$3" != --is-current ] || { echo old >&2; exit 1; }; sleep 600 & echo $! >$0.pid; wait'


async def started(made: Path) -> psutil.Process:
    """What the build of `BUILDS_FOR_EVER` has started."""
    pid = made.with_suffix(".pid")
    await until("the build runs", lambda: pid.exists() and pid.read_text().endswith("\n"))
    return psutil.Process(int(pid.read_text()))


async def end_build(task: asyncio.Task[None], running: psutil.Process) -> None:
    """Cancel a build, and see that what it has started has ended by then."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running.is_running() or running.status() == psutil.STATUS_ZOMBIE


async def test_an_end_of_up_ends_the_build_and_all_that_it_started(tmp_path: Path) -> None:
    made = script(tmp_path, BUILDS_FOR_EVER)
    task = asyncio.create_task(build(made).run())
    await end_build(task, await started(made))


async def test_an_end_of_up_ends_a_build_that_is_just_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = script(tmp_path, BUILDS_FOR_EVER)
    start = asyncio.get_running_loop().subprocess_exec
    held = asyncio.Event()

    async def start_slowly(protocol: Callable[[], SubprocessProtocol], *argv: Any, **options: Any) -> Any:
        """The event loop's own, which comes back when the test says so: the script may be far by then."""
        begun = await start(protocol, *argv, **options)
        if argv[-1] == "--background":
            await held.wait()
        return begun

    monkeypatch.setattr(asyncio.get_running_loop(), "subprocess_exec", start_slowly)
    task = asyncio.create_task(build(made).run())
    running = await started(made)
    asyncio.get_running_loop().call_soon(held.set)
    await end_build(task, running)
