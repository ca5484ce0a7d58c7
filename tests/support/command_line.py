"""Command lines of `roundhouse` that a test runs within its process, and what comes of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import pytest

from controller.cli.app import run


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
