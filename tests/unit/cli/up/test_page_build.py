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

from cli.up.run import BUILD_SCRIPT, PageBuild, build_variables, is_wanted
from cli.up.supervisor import Announcer
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


@pytest.mark.parametrize(
    ("environment", "is_built"),
    [
        ({}, True),
        ({"ROUNDHOUSE_PAGE": "on"}, True),
        *(({"ROUNDHOUSE_PAGE": word}, False) for word in ("off", "false", "0", "No", "OFF", "n", "f")),
        ({"ROUNDHOUSE_PAGE_FOLDER": "/srv/page"}, False),
    ],
)
def test_a_checkout_builds_its_page_unless_it_is_off_or_somebody_elses(
    environment: dict[str, str], is_built: bool, tmp_path: Path
) -> None:
    assert BUILD_SCRIPT.is_file()
    assert is_wanted(environment) is is_built
    assert not is_wanted(environment, tmp_path / "web" / "build"), "an installed wheel builds none"


def test_the_build_sees_what_reaches_a_registry_and_no_secret() -> None:
    needed = {"PATH": "/bin", "HOME": "/h", "PIP_INDEX_URL": "x", "npm_config_registry": "y", "HTTPS_PROXY": "z"}
    secret = {"ROUNDHOUSE_HUB_TOKEN_FILE": "t", "OPENAI_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert build_variables(needed | secret) == needed


OLD = '[ "$3" != --is-current ] || { echo old >&2; exit 1; }'


@pytest.mark.parametrize(
    ("text", "err", "requests"),
    [("", "", ["--is-current"]), (OLD, BUILDS, ["--is-current", "--background"])],
    ids=["built", "old"],
)
async def test_a_page_is_served_after_a_build_if_it_is_old(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, err: str, requests: list[str]
) -> None:
    await build(script(tmp_path, f'echo "$3" >>{tmp_path}/requests; {text}')).run()
    written = capfd.readouterr()
    assert (json.loads(written.out), written.err) == (SERVED, err)
    assert (tmp_path / "requests").read_text().split() == requests


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo one >&2; echo 'roundhouse: the page was not built: no network' >&2; exit 1", "no network"),
        ("exit 3", "{script} ended with status 3"),
        (None, ""),
    ],
    ids=["it fails", "it says nothing", "it cannot start"],
)
async def test_a_build_that_fails_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str | None, reason: str
) -> None:
    path = tmp_path / "none" if text is None else script(tmp_path, text)
    await build(path).run()
    out, err = capfd.readouterr()
    line = "roundhouse: the page was not built: "
    assert out == ""
    if text is None:
        assert (err.startswith(line), err.count("\n")) == (True, 1)
    else:
        assert err == f"{BUILDS}{line}{reason.format(script=path)}\n"


BUILDS_FOR_EVER = f"{OLD}; sleep 600 & echo $! >$0.pid; wait"


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
