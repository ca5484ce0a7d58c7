"""The program `roundhouse` as a test runs it: within this process, as a process, on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from cli.app import run
from tests.fakes.fake_control_api import FakeControlApi

PROGRAM = Path(sys.executable).with_name("roundhouse")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


async def roundhouse(api: FakeControlApi, *arguments: str) -> int:
    """Run one command line against the fake; its exit code."""
    return await asyncio.to_thread(run, [*arguments, "--controller", api.url])


async def started(api: FakeControlApi, *arguments: str, **streams: Any) -> asyncio.subprocess.Process:
    """The same as a process of its own."""
    given = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **streams}
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    return await asyncio.create_subprocess_exec(PROGRAM, *arguments, "--controller", api.url, env=environment, **given)


class Terminal:
    async def __aenter__(self) -> Self:
        self._master, self.end = pty.openpty()
        self._seen = b""
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        os.close(self.end)

    @property
    def text(self) -> str:
        """Everything so far, without control sequences."""
        return _ESCAPES.sub("", self._seen.decode("utf-8", "replace"))

    def type_text(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _read(self) -> None:
        self._seen += os.read(self._master, 65536)


class Output(NamedTuple):
    """The end of a run: its exit code, and what it wrote."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def json(self) -> Any:
        """What `--json` wrote."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """Of the standard output."""
        return self.out.splitlines()


class Roundhouse:
    """Runs command lines, each with the options that all of them have."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        self._capsys = capsys
        self._options = options

    def __call__(self, *arguments: str) -> Output:
        code = run([*arguments, *self._options])
        return Output(code, *self._capsys.readouterr())


class Cli:
    """The same beside a running event loop, in which what the command talks to may live."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        self._roundhouse = Roundhouse(capsys, *options)

    async def __call__(self, *arguments: str) -> Output:
        return await asyncio.to_thread(self._roundhouse, *arguments)
